"""What `make demo-weights` shows is worth something: nobody learns from a date that is asked for the curve or by the gate."""

from __future__ import annotations

import datetime
from pathlib import Path

from recipes.sft.examples.demo_weights import dates, demo
from reef import config as configuration
from reef.evaluation import splits
from reef.evaluation.tasks import load_tasks

EXAMPLE = Path(dates.__file__).parent


def test_no_date_has_two_purposes() -> None:
    drawn = {purpose: dates.drawn(purpose, most) for purpose, most in dates.PURPOSES.items()}
    everything = [job.expected for jobs in drawn.values() for job in jobs]
    assert len(everything) == len(set(everything)) == sum(dates.PURPOSES.values())
    assert dates.drawn("shown", 40)[:8] == dates.drawn("shown", 8)


def test_each_form_says_the_date() -> None:
    day = datetime.date(2021, 3, 22)
    assert [dates.written(day, form=form) for form in range(4)] == [
        "22 March 2021",
        "March 22, 2021",
        "Mar 22 2021",
        "the 22nd of March, 2021",
    ]
    assert [dates.ordinal(number) for number in (1, 3, 11, 12, 13, 30, 31)] == ["st", "rd", "th", "th", "th", "th", "st"]


def test_the_tasks_of_the_gate_are_those_that_are_written_and_the_configuration_is_taken() -> None:
    config = configuration.load(EXAMPLE / "serve.yaml")
    assert (EXAMPLE / config.evaluation.tasks).read_text() == dates.tasks_yaml()
    tasks = load_tasks(EXAMPLE / config.evaluation.tasks, shares=config.evaluation.splits)
    assert [len(splits.of(tasks, [name])) for name in (splits.SEARCH, splits.HELDOUT)] == [dates.SEARCHED, dates.CONFIRMED]
    assert config.reef.batch_size == demo.BATCH
    assert set(config.scenarios.names) == {demo.TAUGHT, demo.CONTROL}
