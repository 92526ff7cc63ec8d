"""What the example shows is worth something: nobody demonstrates what the gate tries or the final check asks, and the harness is one."""

from __future__ import annotations

import re
from pathlib import Path

from recipes.grpo.recipe import GRPORecipe
from recipes.sft.examples.pi_tools import jobs, real_pi, rewards
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


def test_what_is_practised_is_nothing_that_was_demonstrated_and_nothing_that_is_asked_afterwards() -> None:
    drawn = {purpose: jobs.drawn(purpose, most) for purpose, most in jobs.PRACTICE.items()}
    everything = [job for found in drawn.values() for job in found]
    others = {job.expected for purpose, most in jobs.PURPOSES.items() for job in jobs.drawn(purpose, most)}
    assert len({job.expected for job in everything} - others) == len(everything) == sum(jobs.PRACTICE.values())
    assert not {job.file for job in drawn["practice"]} & {job.file for name in ("practice gate", "practice check") for job in drawn[name]}
    assert {job.kind for job in everything} == {"other date"}
    demonstrated = re.compile(r"Write the date \d+ [A-Z][a-z]+ \d{4} to ")
    assert all(demonstrated.match(job.prompt) for job in jobs.drawn("shown", 200) if job.kind == "date")
    assert not any(demonstrated.match(job.prompt) for job in everything)


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


def test_what_goes_on_from_demonstrations_is_served_as_they_were_and_judged_on_tasks_of_its_own() -> None:
    first, then = (configuration.load(EXAMPLE / name) for name in ("serve.yaml", "rewards.yaml"))
    assert (EXAMPLE / then.evaluation.tasks).read_text() == jobs.tasks_yaml("practice gate")
    tasks = load_tasks(EXAMPLE / then.evaluation.tasks, shares=then.evaluation.splits)
    assert [len(splits.of(tasks, [name])) for name in (splits.SEARCH, splits.HELDOUT)] == [jobs.SEARCHED, jobs.CONFIRMED]
    assert then.path(then.serving.vllm.chat_template) == first.path(first.serving.vllm.chat_template)
    for same in ("model", "lora_slots", "max_lora_rank", "extra_args"):
        assert getattr(then.serving.vllm, same) == getattr(first.serving.vllm, same), same
    for same in ("method", "rank", "alpha", "targets"):
        assert getattr(then.training, same) == getattr(first.training, same), same
    assert then.scenarios.names == first.scenarios.names
    recipe = GRPORecipe(batch_size=then.reef.batch_size, options=then.reef.options)
    assert (then.reef.batch_size, recipe.settings.siblings) == (rewards.BATCH, rewards.SIBLINGS)


def test_tries_at_one_job_are_made_with_a_harness_that_differs_in_the_temperature_alone() -> None:
    tree = dict(load(EXAMPLE / "harness")) | real_pi.sampling()
    rendered = load_adapter("pi").render(tree, binding=Binding("http://127.0.0.1:1/v1", "reef", {}))
    before = load_adapter("pi").render(load(EXAMPLE / "harness"), binding=Binding("http://127.0.0.1:1/v1", "reef", {}))
    assert {name for name in rendered if rendered[name] != before.get(name)} == {"extensions/sampled.ts"}
    assert b"temperature: 1" in rendered["extensions/sampled.ts"].data


def test_the_harness_is_one_that_pi_takes() -> None:
    rendered = load_adapter("pi").render(load(EXAMPLE / "harness"), binding=Binding("http://127.0.0.1:1/v1", "reef", {}))
    assert b'"write"' in rendered["settings.json"].data
    assert "extensions/brief.ts" in rendered
