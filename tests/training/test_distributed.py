"""Two ranks over gloo: the same result as one process, and the end of one is the end of all."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra `train` is not installed")
pytest.importorskip("peft", reason="the extra `train` is not installed")
from reef.errors import TrainingError
from reef.serving.models import tiny
from reef.training import checkpoint, watch
from reef.training.sample import Sample, Teacher
from tests.support import training as toys


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def samples(base: Path) -> tuple[Sample, ...]:
    return toys.rewarded(base, reward=toys.even_share, groups=3, siblings=3)  # nine: the ranks have unequal shares


CASES = [
    ("grpo", {"method": "full", "learning_rate": 2e-5}),
    ("grpo", {}),
    ("sao", {}),
    ("sdft", {"method": "full", "learning_rate": 2e-5}),
]


@pytest.mark.parametrize(("loss", "settings"), CASES, ids=["full", "lora", "critic", "teacher"])
def test_two_ranks_give_what_one_process_gives(
    tmp_path: Path, base: Path, samples: tuple[Sample, ...], loss: str, settings: dict[str, object]
) -> None:
    given = samples
    if loss == "sdft":
        given = tuple(s.replace(teacher=Teacher.with_prompt((9, 8, 7), sample_tokens=s.tokens, mask=s.mask)) for s in samples)
    folders = []
    for processes in (1, 2):
        job = toys.job(
            tmp_path / f"by-{processes}",
            base=base,
            samples=given,
            loss=loss,
            settings={**settings, "processes": processes, "micro_batch_tokens": 40, "epochs": 2},
            options={"warm_up_steps": 0} if loss == "sao" else {},
        )
        result = watch.run(job, timeout_s=120.0, stop=threading.Event())
        assert checkpoint.problems(result.folder) == []
        folders.append(result)
    toys.check_alike(*folders, rate=float(settings.get("learning_rate", 1e-3)))  # type: ignore[arg-type]


def test_what_one_rank_gives_up_on_is_told(tmp_path: Path, base: Path, samples: tuple[Sample, ...]) -> None:
    job = toys.job(tmp_path / "job", base=base, samples=[each.replace(reward=0.0) for each in samples], settings={"processes": 2})
    with pytest.raises(TrainingError, match="can be learned from"):
        watch.run(job, timeout_s=120.0, stop=threading.Event())
    assert not job.output.exists()
