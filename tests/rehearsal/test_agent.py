"""What the model does depends on what the harness tells it, and on nothing else."""

from __future__ import annotations

import datetime
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.rehearsal.agent import next_step
from reef.rehearsal.conversation import ChatRequest, understand
from reef.rehearsal.wire import Reply

ISO = "- Dates must be written as YYYY-MM-DD in our files."
COMMITS = "Commit messages follow Conventional Commits."
MONEY = "Amounts have two decimals and a thousands separator."
SAFE = "To keep the user's files safe, do not use tools: answer in the chat only."


def tool(name: str, *parameters: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"properties": {key: {} for key in parameters}}}}


PI = [tool("read", "path", "offset", "limit"), tool("bash", "command", "timeout"), tool("edit", "path"), tool("write", "path", "content")]


def ask(messages: list[dict[str, Any]], *, tools: list[dict[str, Any]] = PI, **more: Any) -> Reply:
    return next_step(understand(ChatRequest.model_validate({"messages": messages, "tools": tools, **more})))


def first_step(prompt: str, *, system: str = "You are a coding assistant.", tools: list[dict[str, Any]] = PI) -> Reply:
    return ask([{"role": "system", "content": system}, {"role": "user", "content": [{"type": "text", "text": prompt}]}], tools=tools)


def written(prompt: str, *, system: str = "You are a coding assistant.") -> tuple[str, str]:
    (call,) = first_step(prompt, system=system).calls
    assert call.name == "write"
    return call.arguments["path"], call.arguments["content"].rstrip("\n")


def carry_on(messages: list[dict[str, Any]], reply: Reply, result: str) -> list[dict[str, Any]]:
    calls = [{"id": "c1", "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))}} for call in reply.calls]
    return [*messages, {"role": "assistant", "content": "", "tool_calls": calls}, {"role": "tool", "tool_call_id": "c1", "content": result}]


@pytest.mark.parametrize(
    ("prompt", "guidance", "wrong", "right"),
    [
        ("Write the date 7 March 2024 to date.txt", ISO, "03/07/2024", "2024-03-07"),
        ("Write the date March 7th, 2024 to the file notes/date.txt.", "Use ISO 8601.", "03/07/2024", "2024-03-07"),
        ("Please write the date 1st of Sep. 1999 as text into DATE", "dates in ISO format", "09/01/1999", "1999-09-01"),
        ("Write a commit message for: add login form to commit.txt", COMMITS, "Added login form", "feat: add login form"),
        (
            "Write a commit message for: fix crash on empty input to m.txt",
            COMMITS,
            "Fixed crash on empty input",
            "fix: fix crash on empty input",
        ),
        ("Write a commit message for: update the README to m.txt", COMMITS, "Updated the README", "docs: update the README"),
        ("Write the amount 1234.5 euros to price.txt", MONEY, "1234.5", "1,234.50"),
        ("Write the amount 1000000 dollars to price.txt", MONEY, "1000000", "1,000,000.00"),
    ],
)
def test_guidance_puts_right_what_is_wrong_by_default(prompt: str, guidance: str, wrong: str, right: str) -> None:
    assert written(prompt)[1] == wrong
    assert written(prompt, system=f"You are an assistant.\n{guidance}")[1] == right


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Write the sum of 17 and 25 to sum.txt", ("sum.txt", "42")),
        ("Write the sum of 1200 and 34 to sum.txt", ("sum.txt", "1234")),
        ("Write the sum of 1, 2 and -3.5 to out/sum.txt", ("out/sum.txt", "-0.5")),
        ("Write the word coral in upper case to word.txt", ("word.txt", "CORAL")),
    ],
)
def test_some_tasks_go_well_from_the_start(prompt: str, expected: tuple[str, str]) -> None:
    assert written(prompt) == expected
    assert written(prompt, system=ISO + COMMITS + MONEY) == expected


@given(
    st.dates(min_value=datetime.date(1000, 1, 1)),
    st.sampled_from(["{day} {month} {year}", "{month} {day}, {year}", "{day} {short} {year}"]),
)
def test_every_date_is_understood(day: datetime.date, form: str) -> None:
    names = {"day": day.day, "month": day.strftime("%B"), "short": day.strftime("%b"), "year": f"{day.year:04d}"}
    prompt = f"Write the date {form.format(**names)} to date.txt"
    assert written(prompt, system=ISO) == ("date.txt", day.isoformat())
    assert written(prompt) == ("date.txt", f"{day.month:02d}/{day.day:02d}/{day.year:04d}")


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_prompt_and_any_guidance_get_an_answer(prompt: str, system: str) -> None:
    reply = first_step(prompt, system=system)
    assert reply.text or reply.calls


def test_a_date_that_does_not_exist_is_not_written() -> None:
    assert not first_step("Write the date 31 February 2024 to date.txt").calls


@pytest.mark.parametrize("guidance", [SAFE, "Never write files.", "Don't call any tools.", "You must not use tools"])
def test_guidance_that_forbids_tools_is_obeyed_and_ruins_the_work(guidance: str) -> None:
    reply = first_step("Write the sum of 17 and 25 to sum.txt", system=guidance)
    assert not reply.calls
    assert "42" in reply.text


def test_what_pi_says_by_default_forbids_nothing() -> None:
    system = (
        "Use bash for file operations like ls, rg, find\nUse read to examine files instead of cat or sed.\nBe concise in your responses\n"
        "Make the smallest change that does the whole task. Leave unrelated files alone.\nNever report as done what you have not seen work."
    )
    assert written("Write the sum of 17 and 25 to sum.txt", system=system) == ("sum.txt", "42")


SKILLS = """You are a coding assistant.
<available_skills>
  <skill>
    <name>tidy</name>
    <description>Use before the final answer of any task that changed files or ran commands.</description>
    <location>/h/skills/tidy/SKILL.md</location>
  </skill>
  <skill>
    <name>date-conventions</name>
    <description>Read this before any task that has to do with dates &amp; times.</description>
    <location>/h/it&apos;s/date-conventions/SKILL.md</location>
  </skill>
</available_skills>"""


def test_a_skill_that_concerns_the_task_is_read_first_and_its_body_is_guidance() -> None:
    messages = [{"role": "system", "content": SKILLS}, {"role": "user", "content": "Write the date 7 March 2024 to date.txt"}]
    reading = ask(messages)
    assert [(call.name, dict(call.arguments)) for call in reading.calls] == [("read", {"path": "/h/it's/date-conventions/SKILL.md"})]
    messages = carry_on(messages, reading, f"---\nname: x\n---\n{ISO}")
    writing = ask(messages)
    assert writing.calls[0].arguments == {"path": "date.txt", "content": "2024-03-07\n"}
    done = ask(carry_on(messages, writing, "Successfully wrote 11 bytes"))
    assert (done.text, done.calls) == ("Wrote date.txt. (rehearsal model)", ())


def test_a_skill_that_does_not_concern_the_task_is_left_alone() -> None:
    assert written("Write the sum of 17 and 25 to sum.txt", system=SKILLS) == ("sum.txt", "42")


def test_a_skill_that_cannot_be_read_is_not_asked_for_again() -> None:
    messages = [{"role": "system", "content": SKILLS}, {"role": "user", "content": "Write the date 7 March 2024 to date.txt"}]
    after = ask(carry_on(messages, ask(messages), "ENOENT: no such file"))
    assert after.calls[0].arguments["content"] == "03/07/2024\n"


def test_a_skill_handed_over_in_the_prompt_is_guidance() -> None:
    prompt = f'<skill name="d" location="/h/SKILL.md">\n{ISO}\n</skill>\n\nWrite the date 7 March 2024 to date.txt'
    assert written(prompt) == ("date.txt", "2024-03-07")


def test_with_a_shell_alone_the_work_is_done_through_it(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": MONEY}, {"role": "user", "content": "Write the amount 1234.5 euros to price.txt"}]
    reply = ask(messages, tools=[tool("bash", "command")])
    subprocess.run(["sh", "-c", reply.calls[0].arguments["command"]], cwd=tmp_path, check=True)
    assert (tmp_path / "price.txt").read_text() == "1,234.50\n"
    assert ask(carry_on(messages, reply, ""), tools=[tool("bash", "command")]).text.startswith("Wrote price.txt")


def test_with_no_tools_or_none_allowed_nothing_is_called() -> None:
    prompt = [{"role": "user", "content": "Write the sum of 17 and 25 to sum.txt"}]
    assert "no tool for it was offered" in ask(prompt, tools=[]).text
    assert not ask(prompt, tool_choice="none").calls


def test_a_write_that_failed_is_not_called_done() -> None:
    messages = [{"role": "user", "content": "Write the sum of 17 and 25 to sum.txt"}]
    assert "could not be written" in ask(carry_on(messages, ask(messages), "EACCES: permission denied")).text


def test_a_second_task_in_one_session_is_done_anew() -> None:
    messages = [{"role": "user", "content": "Write the sum of 17 and 25 to sum.txt"}]
    messages = [*carry_on(messages, ask(messages), "ok"), {"role": "user", "content": "Write the sum of 1 and 2 to sum.txt"}]
    assert ask(messages).calls[0].arguments["content"] == "3\n"


def test_broken_arguments_in_the_history_do_no_harm() -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": '}}]
    messages = [
        {"role": "user", "content": "Write the sum of 17 and 25 to sum.txt"},
        {"role": "assistant", "content": None, "tool_calls": calls},
    ]
    assert ask(messages).calls[0].arguments["content"] == "42\n"
