"""Transfers between real processes over gloo and by shared memory, without an engine: what arrives, what is sent, who is named."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from safetensors.torch import save_file  # noqa: E402

from reef.errors import WeightSyncError, WeightSyncTimeout  # noqa: E402
from reef.serving.sync.channel import Ticket  # noqa: E402
from reef.serving.sync.held import Version  # noqa: E402
from reef.serving.sync.sender import send  # noqa: E402
from tests.serving.sync.ranks import BUCKET, Rank, ranks, trainer_that_dies  # noqa: E402


@pytest.fixture(params=["gloo", "ipc"])
def channel(request: pytest.FixtureRequest) -> str:
    return request.param


def weights(seed: int, *, size: int = 5000) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {f"model.layers.{n}.mlp.weight": torch.randn(size + n, 3, generator=generator) for n in range(3)}
    return {**tensors, "model.norm.weight": torch.randn(7, generator=generator).to(torch.bfloat16), "count": torch.arange(5)}


def saved(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    return folder


def transfer(version: Version, to: list[Rank], *, channel: str, deadline_s: float = 30) -> tuple[int, int]:
    def invite(ticket: Ticket) -> None:
        for rank in to:
            rank.call(ticket)

    names = [rank.name for rank in to]
    return send(version, ranks=names, invite=invite, channel=channel, host="127.0.0.1", deadline_s=deadline_s, bucket_bytes=BUCKET)


def test_every_rank_has_the_same_bytes_afterwards(channel: str, tmp_path: Path) -> None:
    version = Version("new", weights(1))
    with ranks(2, base=tmp_path / "none") as both:
        tensors, size = transfer(version, both, channel=channel)
        assert [rank.result() for rank in both] == [version.digest()] * 2
    assert tensors == len(version.tensors)
    assert size == sum(tensor.nbytes for tensor in version.tensors.values())


def test_only_tensors_that_changed_are_sent(channel: str, tmp_path: Path) -> None:
    base = weights(1)
    version = Version("new", {**base, "model.norm.weight": base["model.norm.weight"] + 1})
    with ranks(1, base=saved(tmp_path / "base", base)) as one:
        assert transfer(version, one, channel=channel) == (1, 14)
        assert one[0].result() == version.digest()


def test_nothing_is_sent_where_all_is_there(channel: str, tmp_path: Path) -> None:
    base = weights(1)
    with ranks(1, base=saved(tmp_path / "base", base)) as one:
        assert transfer(Version("same", dict(base)), one, channel=channel) == (0, 0)
        assert one[0].result() == Version("same", base).digest()


def test_weights_of_another_shape_are_refused_by_name(channel: str, tmp_path: Path) -> None:
    base = weights(1)
    version = Version("new", {**base, "model.norm.weight": torch.ones(8, dtype=torch.bfloat16)})
    with (
        ranks(1, base=saved(tmp_path / "base", base)) as one,
        pytest.raises(WeightSyncError, match=r"rank 1 \(worker 1\).*model.norm.weight is \(8,\)"),
    ):
        transfer(version, one, channel=channel)


def test_weights_that_lack_a_tensor_are_refused(channel: str, tmp_path: Path) -> None:
    base = weights(1)
    version = Version("new", {name: tensor for name, tensor in base.items() if name != "count"})
    with ranks(1, base=saved(tmp_path / "base", base)) as one, pytest.raises(WeightSyncError, match="new lacks count"):
        transfer(version, one, channel=channel)


def test_a_rank_that_never_comes_is_named(channel: str, tmp_path: Path) -> None:
    with ranks(2, base=tmp_path / "none") as both:
        os.kill(both[1].process.pid, signal.SIGSTOP)
        started = time.monotonic()
        with pytest.raises(WeightSyncTimeout, match=r"^rank 2 \(worker 2\) did not"):
            transfer(Version("new", weights(1)), both, channel=channel, deadline_s=3)
        assert time.monotonic() - started < 6


def test_a_rank_that_stops_in_mid_transfer_is_named(channel: str, tmp_path: Path) -> None:
    with (
        ranks(2, base=tmp_path / "none", last_gets=signal.SIGSTOP) as both,
        pytest.raises(WeightSyncTimeout, match=r"^rank 2 \(worker 2\) did not"),
    ):
        transfer(Version("new", weights(1, size=400_000)), both, channel=channel, deadline_s=4)


def test_a_rank_that_dies_in_mid_transfer_is_named(channel: str, tmp_path: Path) -> None:
    with (
        ranks(2, base=tmp_path / "none", last_gets=signal.SIGKILL) as both,
        pytest.raises(WeightSyncError, match=r"^rank 2 \(worker 2\) did not"),
    ):
        transfer(Version("new", weights(1, size=400_000)), both, channel=channel, deadline_s=10)


def test_a_worker_is_rid_of_a_trainer_that_dies_in_mid_transfer(channel: str, tmp_path: Path) -> None:
    new = saved(tmp_path / "new", weights(1, size=400_000))
    with ranks(1, base=tmp_path / "none") as one:
        trainer_that_dies(new, one[0], channel=channel)
        started = time.monotonic()
        assert one[0].result().startswith("failed: ")
        assert time.monotonic() - started < 10
