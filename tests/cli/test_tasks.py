"""`reef tasks`: listing, checking graders on what is known, and tasks from real traffic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from reef.evaluation import capture
from reef.evaluation.tasks import grader_for, load_tasks
from reef.experience.lines import RecordLine
from reef.types import Task
from tests.cli.test_cli import reef
from tests.support import captures
from tests.support.gateway import Service, service
from tests.support.upstream import Reply, Seen, message, upstream, whole

SET = """# ours
tasks:
  - id: greeting
    prompt: Write hello into hello.txt.
    files: {notes.txt: hello}
    setup: cp notes.txt before.txt
    grader: {type: command, command: "test -f before.txt && grep -qx hello hello.txt"}
    examples:
      good: [{files: {hello.txt: hello}}, {command: cp notes.txt hello.txt}]
      bad: {answer: I will not.}
  - id: total
    prompt: What is the total?
    grader: {type: regex, pattern: "42"}
    examples: {good: "It is 42.", bad: ["It is 41.", "It is not 42."]}
    group: sums
    protected: true
  - id: bare
    prompt: Anything.
    grader: {type: exact, expected: x}
    examples: {good: x}
"""
REGEX = 'pattern: "42"'


def written(folder: Path, text: str) -> Path:
    path = folder / "tasks.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_list_tells_split_and_grader(tmp_path: Path) -> None:
    path = written(tmp_path, SET)
    (tmp_path / "serve.yaml").write_text("evaluation: {splits: {heldout: 0.99}}")
    listed = reef("tasks", "list", str(path))
    assert listed.returncode == 0 and "3 tasks: 3 search" in listed.stdout
    assert next(line for line in listed.stdout.splitlines() if line.startswith("total")).split()[:6] == [
        "total", "search", "regex", "1", "sums", "protected",
    ]  # fmt: skip
    told = [json.loads(line) for line in reef("tasks", "list", str(path), "-c", str(tmp_path / "serve.yaml"), "--json").stdout.splitlines()]
    assert [(task["id"], task["split"]) for task in told] == [("greeting", "heldout"), ("total", "heldout"), ("bare", "heldout")]
    assert reef("tasks", "list", str(path), "--split", "sealed", "--json").stdout == ""
    assert "there is no split secret" in reef("tasks", "list", str(path), "--split", "secret").stderr


def test_a_check_finds_the_grader_that_takes_a_bad_answer_for_good(tmp_path: Path) -> None:
    path = written(tmp_path, SET)
    checked = reef("tasks", "check", str(path))
    assert checked.returncode == 1
    assert "✓ greeting (command): a good one: 1, exit status 0" in checked.stdout
    assert "✓ greeting (command): a bad one: 0, exit status" in checked.stdout
    assert "✗ total (regex): a bad one: 1, matches: 'It is not 42.'" in checked.stdout
    assert "– bare (exact): no bad example" in checked.stdout
    assert "6 of 7 examples graded as they are labelled" in checked.stdout
    path = written(tmp_path, SET.replace(REGEX, 'pattern: "is 42"'))
    assert reef("tasks", "check", str(path)).returncode == 0
    assert reef("tasks", "check", str(path), "--strict").returncode == 1
    assert reef("tasks", "check", str(path), "--strict", "--task", "total").returncode == 0
    assert "has no task none" in reef("tasks", "check", str(path), "--task", "none").stderr


def test_a_grader_or_set_up_that_fails_is_told_as_no_score(tmp_path: Path) -> None:
    failing = SET.replace("setup: cp notes.txt before.txt", "setup: 'echo away >&2; exit 1'")
    checked = reef("tasks", "check", str(written(tmp_path, failing)), "--task", "greeting")
    assert checked.returncode == 1
    assert "✗ greeting (command): a good one: no score, the set-up command ended with status 1: away" in checked.stdout
    broken = SET.replace('{type: regex, pattern: "42"}', '{type: command, command: "echo 7", score: last_line}')
    assert "no score, a grader gave the score 7.0" in reef("tasks", "check", str(written(tmp_path, broken)), "--task", "total").stdout


JUDGED = """
tasks:
  - id: sky
    prompt: Why is the sky blue?
    grader: {type: judge, rubric: Names the cause.}
    examples:
      good: [Rayleigh scattering., Scattering, It scatters]
      bad: [Because., It is the sea.]
"""


def test_a_check_tells_how_far_a_judge_agrees_with_the_labels(tmp_path: Path) -> None:
    def judge(seen: Seen) -> Reply:
        prompt = seen.body["messages"][1]["content"]
        score = 1 if "catter" in prompt or "sea" in prompt else 0
        return whole(message(json.dumps({"reason": "so", "score": score})))

    path = written(tmp_path, JUDGED)
    with upstream(judge) as fake, service(tmp_path, upstream=fake.url) as gateway:
        checked = reef("tasks", "check", str(path), "--url", gateway.url)
        assert checked.returncode == 0 and "the judge agrees with 4 of 5 labels (80%)" in checked.stdout
        assert reef("tasks", "check", str(path), "--url", gateway.url, "--agreement", "0.9").returncode == 1
    away = reef("tasks", "check", str(path), "--url", "http://127.0.0.1:1")
    assert away.returncode == 1 and "a good one: no score, the model did not answer" in away.stdout


PROMPT = "Write the date\nto date.txt"


def work(gateway: Service, *, report: dict[str, Any] | None) -> None:
    """A run with a title request beside it and a second question."""
    tools = [{"type": "function", "function": {"name": "write"}}]
    reminder = {"type": "text", "text": "<system-reminder>rules</system-reminder>"}
    start = [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": [reminder, {"type": "text", "text": PROMPT}]}]
    more = [*start, {"role": "assistant", "content": "It is done: 7 March."}, {"role": "user", "content": "thanks"}]
    for body in (
        {"model": "m", "messages": [{"role": "user", "content": "Title for: Write the date"}]},
        {"model": "m", "tools": tools, "messages": start},
        {"model": "m", "tools": tools, "messages": more},
    ):
        gateway.request("POST", "/v1/chat/completions", body, {"x-reef-session": "run-1"})
    if report:
        gateway.request("POST", "/reef/report", {"session": "run-1", **report})


def captured(tmp_path: Path, gateway: Service, *arguments: str) -> Any:
    return reef("tasks", "capture", "run-1", "--url", gateway.url, *arguments, cwd=tmp_path)


@pytest.fixture
def gateway(tmp_path: Path) -> Any:
    with upstream(lambda _seen: whole(message("It is done: 7 March."))) as fake, service(tmp_path, upstream=fake.url) as running:
        yield running


def test_a_failed_run_becomes_a_task_with_its_outcome_as_a_bad_example(tmp_path: Path, gateway: Service) -> None:
    work(gateway, report={"score": 0.1, "feedback": "Dates are written as YYYY-MM-DD."})
    done = captured(tmp_path, gateway)
    assert done.returncode == 0, done.stderr
    (told,) = yaml.safe_load(done.stdout)["tasks"]
    assert told["prompt"] == PROMPT
    assert told["outcome"] == {"session": "run-1", "scenario": "default", "score": 0.1, "feedback": "Dates are written as YYYY-MM-DD."}
    assert told["grader"]["type"] == "judge" and "Dates are written as YYYY-MM-DD." in told["grader"]["rubric"]
    assert told["examples"] == {"bad": {"answer": "It is done: 7 March."}}
    (task,) = load_tasks(written(tmp_path, done.stdout))
    assert (task.id, task.tags, grader_for(task).needs_model) == ("captured-run-1", ("captured",), True)


def test_a_good_run_is_the_reference_and_one_without_a_report_says_so(tmp_path: Path, gateway: Service) -> None:
    work(gateway, report=None)
    bare = captured(tmp_path, gateway)
    assert "nothing was reported on run-1" in bare.stderr and "examples" not in bare.stdout
    gateway.request("POST", "/reef/report", {"session": "run-1", "score": 1})
    (told,) = yaml.safe_load(captured(tmp_path, gateway).stdout)["tasks"]
    assert told["grader"]["reference"] == "It is done: 7 March."
    assert told["examples"] == {"good": {"answer": "It is done: 7 March."}}


def test_it_is_added_to_a_set_with_its_workspace_and_what_is_there_stays_as_it_is_written(tmp_path: Path, gateway: Service) -> None:
    work(gateway, report={"score": 0})
    project = tmp_path / "project"
    (project / "node_modules").mkdir(parents=True)
    (project / "node_modules" / "x.js").write_text("")
    (project / "run.sh").write_text("#!/bin/sh\n")
    (project / "run.sh").chmod(0o755)
    path = written(tmp_path, SET)
    given = (
        "-o",
        "tasks.yaml",
        "--workspace",
        "project",
        "--id",
        "dates",
        "--grader",
        "{type: exact, file: date.txt, expected: 2024-03-07}",
    )
    done = captured(tmp_path, gateway, *given)
    assert done.returncode == 1 and "task dates: grader.expected" in done.stderr and path.read_text() == SET  # that is a date to YAML
    assert not (tmp_path / "workspaces" / "dates").exists()
    given = (*given[:-1], "{type: exact, file: date.txt, expected: '2024-03-07'}")
    done = captured(tmp_path, gateway, *given)
    assert done.returncode == 0, done.stderr
    assert path.read_text().startswith(SET)
    tasks = load_tasks(path)
    assert [task.id for task in tasks] == ["greeting", "total", "bare", "dates"]
    assert tasks[-1].grader == "exact" and tasks[-1].files["run.sh"].executable and "node_modules/x.js" not in tasks[-1].files
    again = captured(tmp_path, gateway, "-o", "tasks.yaml", "--id", "dates")
    assert again.returncode == 1 and "the id dates is given twice" in again.stderr and len(load_tasks(path)) == 4
    new = captured(tmp_path, gateway, "-o", "new.yaml")
    assert new.returncode == 0 and len(load_tasks(tmp_path / "new.yaml")) == 1


def test_a_workspace_with_a_secret_is_not_taken_and_a_session_that_is_not_there_is_named(tmp_path: Path, gateway: Service) -> None:
    work(gateway, report=None)
    project = tmp_path / "project"
    project.mkdir()
    (project / "notes.txt").write_text("plain")
    (project / "data.bin").write_bytes(b"\xff\0")
    printed = yaml.safe_load(captured(tmp_path, gateway, "--workspace", "project").stdout)
    assert printed["tasks"][0]["files"] == {"notes.txt": "plain", "data.bin": {"base64": "/wA="}}
    (project / ".env").write_text("OPENAI_API_KEY=sk-proj-" + "a1B2" * 12)
    refused = captured(tmp_path, gateway, "--workspace", "project")
    assert refused.returncode == 1 and ".env holds what looks like" in refused.stderr and "a1B2" not in refused.stderr
    missing = reef("tasks", "capture", "nobody", "--url", gateway.url)
    assert missing.returncode == 1 and "session nobody of scenario default has no records" in missing.stderr


DIALECTS = {"/v1/chat/completions": "chat", "/v1/responses": "responses", "/v1/messages": "messages"}


ADAPTED = [name for name in captures.files() if name.startswith(("claude", "codex", "opencode", "pi-"))]


@pytest.mark.parametrize("name", ADAPTED)
def test_the_question_is_found_in_what_each_agent_with_an_adapter_sends(name: str) -> None:
    """It is short and nothing that the agent adds, though some send rules and surroundings in the user's name first."""
    runs: dict[str, list[Any]] = {}
    for item in captures.read(name):
        dialect = DIALECTS.get(item.path.partition("?")[0])
        if dialect is not None and item.body:
            line = RecordLine(request=item.body, response=None, dialect=dialect, session=item.run)
            runs.setdefault(item.run, []).append(line.record("default"))
    assert runs
    for records in runs.values():
        prompt = capture.entry(records, [])["prompt"]
        assert 0 < len(prompt) < 2000
        assert not prompt.startswith(("<", "# AGENTS.md"))


def test_the_same_question_is_in_the_same_group(tmp_path: Path) -> None:
    def asked(text: str, session: str) -> Task:
        body = {"model": "m", "messages": [{"role": "user", "content": text}]}
        record = RecordLine(request=body, response=None, session=session).record("default")
        path = written(tmp_path, "tasks:\n" + capture.as_yaml(capture.entry([record], [])))
        return load_tasks(path)[0]

    one, same, other = asked("Do  it\nnow", "a"), asked("Do it now", "b"), asked("Do that", "c")
    assert one.group == same.group != other.group and one.id != same.id
