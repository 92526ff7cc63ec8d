"""What the example shows is worth something: nobody demonstrates what the gate tries or the final check asks, and the harness is one."""

from __future__ import annotations

from pathlib import Path

from recipes.sft.examples.pi_tools import jobs
from reef import config as configuration
from reef.evaluation import splits
from reef.evaluation.tasks import load_tasks
from reef.harness.adapter import Binding, load_adapter
from reef.harness.tree import load
from reef.rehearsal.competence import understand_task

EXAMPLE = Path(jobs.__file__).parent


def test_no_date_and_no_amount_has_two_purposes_and_no_file_of_a_demonstration_is_asked_for_again() -> None:
    drawn = {purpose: jobs.drawn(purpose, most) for purpose, most in jobs.PURPOSES.items()}
    everything = [job.expected for found in drawn.values() for job in found]
    assert len(everything) == len(set(everything)) == sum(jobs.PURPOSES.values())
    assert not {job.file for job in drawn["shown"]} & {job.file for purpose in ("gate", "check") for job in drawn[purpose]}
    assert jobs.drawn("shown", 40)[:8] == jobs.drawn("shown", 8)


def test_whoever_demonstrates_can_do_every_job() -> None:
    for job in (job for purpose, most in jobs.PURPOSES.items() for job in jobs.drawn(purpose, most)):
        understood = understand_task(job.prompt, guidance="Write dates as YYYY-MM-DD.")
        assert understood is not None
        assert (understood.answer, understood.file) == (job.expected, job.file), job.prompt


def test_the_tasks_of_the_gate_are_those_that_are_written_and_the_configuration_is_taken() -> None:
    config = configuration.load(EXAMPLE / "serve.yaml")
    assert (EXAMPLE / config.evaluation.tasks).read_text() == jobs.tasks_yaml()
    tasks = load_tasks(EXAMPLE / config.evaluation.tasks, shares=config.evaluation.splits)
    assert [len(splits.of(tasks, [name])) for name in (splits.SEARCH, splits.HELDOUT)] == [jobs.SEARCHED, jobs.CONFIRMED]
    assert config.path(config.serving.vllm.chat_template).is_file()
    assert config.default_model == "smollm2-135m", "who demonstrates answers nobody that does not ask for it"


def test_the_harness_is_one_that_pi_takes() -> None:
    rendered = load_adapter("pi").render(load(EXAMPLE / "harness"), binding=Binding("http://127.0.0.1:1/v1", "reef", {}))
    assert b'"write"' in rendered["settings.json"].data
    assert "extensions/brief.ts" in rendered
