"""`reef tasks`: what candidates are judged on, looked at, checked and made from traffic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reef.cli.options import DEFAULT_URL, Scenario, Url
from reef.errors import ConfigError, ReefError

if TYPE_CHECKING:  # they load what the command line can do without
    from reef.config import EvaluationConfig
    from reef.evaluation.graders import Model
    from reef.types import Record, Report, Task

tasks_app = typer.Typer(no_args_is_help=True, help="What candidates are judged on: task sets, their graders, and tasks from traffic.")

File = Annotated[Path, typer.Argument(help="A YAML task set, a Harbor task's folder, or a folder of them.")]
Settings = Annotated[Path | None, typer.Option("--config", "-c", help="serve.yaml, for the shares of the splits and the sandbox.")]


@tasks_app.command("list")
def list_tasks(
    file: File,
    config: Settings = None,
    split: Annotated[str | None, typer.Option(help="Only those of this split: search, heldout or sealed.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, a line for each task.")] = False,
) -> None:
    """List the tasks of a set with their splits and graders."""
    from reef.evaluation import splits

    if split is not None and split not in splits.SPLITS:
        raise ConfigError(f"there is no split {split}", hint=f"Splits: {', '.join(splits.SPLITS)}.")
    found = [task for task in _loaded(file, _evaluation(config)) if split in (None, task.split)]
    if as_json:
        _print_lines(found)
        return
    from reef.cli.show_tasks import show_tasks

    show_tasks(found)


@tasks_app.command("check")
def check_tasks(
    file: File,
    config: Settings = None,
    only: Annotated[list[str] | None, typer.Option("--task", help="Only this one. May be repeated.")] = None,
    agreement: Annotated[float, typer.Option(min=0, max=1, help="Share of the labels that a judge must agree with.")] = 0.8,
    strict: Annotated[bool, typer.Option("--strict", help="Tasks without a good and a bad example fail, too.")] = False,
    model: Annotated[str | None, typer.Option(help="The model that judges; else evaluation.judge_model.")] = None,
    scenario: Scenario = "default",
    url: Url = DEFAULT_URL,
) -> None:
    """Have each grader grade the examples of its task: it must tell the good from the bad."""
    from reef.cli.show_tasks import Checked, show_check
    from reef.evaluation import checking
    from reef.harness.bounds import bounds
    from reef.harness.sandbox import Sandbox

    evaluation = _evaluation(config)
    tasks = _loaded(file, evaluation)
    if unknown := set(only or ()) - {task.id for task in tasks}:
        raise ConfigError(f"{file} has no task {min(unknown)}", hint="`reef tasks list` names them.")
    sandbox = Sandbox(evaluation.sandbox, bounds=bounds(memory_mb=evaluation.trial_memory_mb, processes=evaluation.trial_processes))
    judge = _judge(url, scenario, model or evaluation.judge_model)
    checked = Checked()
    for task in tasks:
        if not only or task.id in only:
            checked.add(task, list(checking.check(task, sandbox=sandbox, model=judge)))
            show_check(checked)
    checked.conclude(agreement=agreement, strict=strict)
    raise typer.Exit(code=1 if checked.failed else 0)


@tasks_app.command("capture")
def capture_task(
    session: Annotated[str, typer.Argument(help="The agent run; `reef sessions` lists them.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Task set to add it to; else it is printed.")] = None,
    workspace: Annotated[Path | None, typer.Option(help="Folder as it was before the run; its files come with the task.")] = None,
    name: Annotated[str, typer.Option("--id", help="The task's id; else it is made from the session's.")] = "",
    grader: Annotated[str, typer.Option(help="How it is graded, as in a task set: '{type: exact, expected: …}'. Else by a judge.")] = "",
    scenario: Scenario = "default",
    url: Url = DEFAULT_URL,
) -> None:
    """Make a task from an agent run: its first question, and what was reported on the outcome."""
    import sys

    from reef.cli import captured
    from reef.evaluation import capture

    records, reports = _exported(url, scenario, session)
    told = capture.entry(records, reports, name=name, grader=captured.grader(grader))
    if not reports:
        print(f"nothing was reported on {session}: the judge has only the question to go by", file=sys.stderr)
    if output is None:
        print("tasks:\n" + capture.as_yaml(captured.with_files(told, workspace)), end="")
        return
    captured.add(told, output=output, workspace=workspace)
    print(f"{output}: {told['id']}")


def _exported(url: str, scenario: str, session: str) -> tuple[list[Record], list[Report]]:
    """The records of a session and the reports on it."""
    from reef.cli.http import fetch_parts, query
    from reef.experience import lines
    from reef.types import Report

    text = b"".join(fetch_parts(url, "/reef/export" + query(scenario=scenario, session=session)))
    records: list[Record] = []
    reports: list[Report] = []
    for line in lines.read(text, first=1, scenario=scenario, in_lines=True, most=10_000_000):
        value = line.value
        if isinstance(value, lines.RecordLine):
            records.append(value.record(line.scenario))
        elif isinstance(value, lines.ReportLine):
            reports.append(
                Report(
                    id=value.id or "",
                    scenario=line.scenario,
                    references=tuple(value.references),
                    session=value.session,
                    score=value.score,
                    feedback=value.feedback,
                    metadata=value.metadata,
                    created_at=value.created_at or 0.0,
                )
            )
    if not records:
        raise ReefError(
            f"session {session} of scenario {scenario} has no records", hint=f"`reef sessions -s {scenario}` lists those there are."
        )
    return records, reports


def _evaluation(config: Path | None) -> EvaluationConfig:
    from reef import config as configuration

    return configuration.load(config).evaluation


def _loaded(file: Path, evaluation: EvaluationConfig) -> tuple[Task, ...]:
    from reef.evaluation.tasks import load_tasks

    return load_tasks(file, shares=evaluation.splits)


def _judge(url: str, scenario: str, model: str) -> Model:
    import os

    from reef.learner.model import GatewayModel

    return GatewayModel(url=url, token=os.environ.get("REEF_TOKEN") or "reef-local", model=model, scenario=scenario, temperature=0.0)


def _print_lines(tasks: list[Task]) -> None:
    import json

    for task in tasks:
        told: dict[str, Any] = {"id": task.id, "split": task.split, "group": task.group, "grader": task.grader}
        told |= {"weight": task.weight, "protected": task.protected, "tags": list(task.tags)}
        print(json.dumps(told))
