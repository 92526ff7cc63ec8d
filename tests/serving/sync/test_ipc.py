"""Memory that trainer and workers share: how it is told of, who can have it, and that nothing of it is left."""

from __future__ import annotations

import inspect
import json
import os
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from reef.errors import WeightSyncError  # noqa: E402
from reef.serving.engine.client import EngineClient  # noqa: E402
from reef.serving.sync import shared  # noqa: E402
from reef.serving.sync.channel import connect, open_channel  # noqa: E402
from reef.serving.sync.choose import choose, share_gpu  # noqa: E402
from reef.serving.sync.held import Version  # noqa: E402
from reef.serving.sync.interface import WeightKind  # noqa: E402
from reef.serving.sync.ipc import IpcChannel, _possible  # noqa: E402
from reef.serving.sync.shared import Place  # noqa: E402
from reef.serving.sync.transfer import TransferSync  # noqa: E402
from tests.serving.sync.ranks import ranks  # noqa: E402
from tests.serving.sync.test_ranks import transfer, weights  # noqa: E402

GPU = "GPU-8c0d2b3e"
SIZE = 1 << 20


def given() -> tuple[Any, ...]:
    """What torch gives of a row of bytes on a GPU, where it is number 3 of its process."""
    handle, counter, event = b"\x00\xffhandle", b"counter\x01", b"event\x80"
    return (
        torch.Tensor, torch.Size([SIZE]), (1,), 512, torch.storage.TypedStorage, torch.uint8, 3, handle, 2 * SIZE, 4096, False, counter, 7,
        event, True,
    )  # fmt: skip


def test_the_handle_of_a_gpus_memory_survives_the_wire_and_has_the_number_of_the_receivers_gpu() -> None:
    text = shared.handle_text(given(), size=SIZE)
    json.loads(text)
    arguments = shared.handle_arguments(text, device=0)
    assert arguments[6] == 0
    assert tuple(arguments[:6]) + tuple(arguments[7:]) == given()[:6] + given()[7:]


def test_the_handle_is_what_torch_and_vllm_take_for_one() -> None:
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    assert tuple(inspect.signature(rebuild_cuda_tensor).parameters) == shared.ARGUMENTS
    ipc_engine = pytest.importorskip("vllm.distributed.weight_transfer.ipc_engine")
    arguments = tuple(shared.handle_arguments(shared.handle_text(given(), size=SIZE), device=3))
    told = ipc_engine.IPCWeightTransferUpdateInfo(
        names=["model.norm.weight"], dtype_names=["uint8"], shapes=[[SIZE]], ipc_handles={GPU: arguments}, tensor_sizes=[SIZE]
    )
    assert told.ipc_handles[GPU] == given()


def test_memory_is_shared_within_one_machine_and_not_between_two() -> None:
    here = Place.here()
    assert Place.parse(here.text()) == here
    assert _possible([here, replace(here, pid=1)])[-1] == "host"
    assert _possible([here, replace(here, machine="another")]) == []
    assert _possible([replace(here, machine="another", gpu=GPU)]) == []  # a GPU that this process does not see


def test_a_rank_on_another_machine_is_told_so_at_once() -> None:
    trainer = connect("127.0.0.1", 0, serve=True, timeout_s=20)
    worker = connect("127.0.0.1", trainer.port, serve=False, timeout_s=20)
    worker.set("ipc/1/place", replace(Place.here(), machine="another").text())
    with pytest.raises(RuntimeError, match="they share neither a GPU nor a machine"):
        IpcChannel(trainer, rank=0, world=2, bucket_bytes=SIZE, timeout_s=20)
    with pytest.raises(RuntimeError, match="they share neither a GPU nor a machine"):
        open_channel("ipc", store=worker, rank=1, world=2, host="127.0.0.1", timeout_s=20)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_a_rank_that_may_not_see_the_trainers_memory_is_named_with_the_reason() -> None:
    with (
        ranks(2, base=Path("/nowhere"), last_is=65534) as both,
        pytest.raises(WeightSyncError, match="so use gloo: host, rank 2: PermissionError"),
    ):
        transfer(Version("new", weights(1)), both, channel="ipc", deadline_s=20)


def test_nothing_is_left_open_after_a_transfer(tmp_path: Path) -> None:
    def opened() -> list[str]:
        """This process's open memory files and watched processes."""
        names = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        return [name for name in names if "memfd:reef-sync" in name or "pidfd" in name]

    with ranks(1, base=tmp_path / "none") as one:
        transfer(Version("new", weights(1)), one, channel="ipc")
    assert opened() == []
    assert "reef-sync" not in Path("/proc/self/maps").read_text()


def test_a_worker_whose_trainer_never_comes_gives_up_in_time() -> None:
    trainer = connect("127.0.0.1", 0, serve=True, timeout_s=20)
    worker = connect("127.0.0.1", trainer.port, serve=False, timeout_s=20)
    with pytest.raises(RuntimeError, match="waited in vain for the trainer to offer a memory"):
        IpcChannel(worker, rank=1, world=2, bucket_bytes=SIZE, timeout_s=0.2)


def test_buckets_of_any_size_come_one_after_the_other() -> None:
    trainer = connect("127.0.0.1", 0, serve=True, timeout_s=20)
    worker = connect("127.0.0.1", trainer.port, serve=False, timeout_s=20)
    sent = [torch.randint(256, (size,), dtype=torch.uint8) for size in (SIZE, 1, SIZE - 1)]
    came: list[Any] = []

    def take() -> None:
        channel = IpcChannel(worker, rank=1, world=2, bucket_bytes=SIZE, timeout_s=20)
        for bucket_N in sent:
            came.append(torch.empty_like(bucket_N))
            channel.broadcast(came[-1], timeout_s=20)
        channel.close()

    thread = threading.Thread(target=take)
    thread.start()
    channel = IpcChannel(trainer, rank=0, world=2, bucket_bytes=SIZE, timeout_s=20)
    for bucket_N in sent:
        channel.broadcast(bucket_N, timeout_s=20)
    thread.join(20)
    channel.close()
    assert [torch.equal(one, other) for one, other in zip(sent, came, strict=True)] == [True] * 3
    trainer.wait(["ipc/1/took/2"], timedelta(seconds=1))


def test_ipc_has_to_be_asked_for_where_there_is_no_gpu_to_share() -> None:
    nowhere = EngineClient("http://127.0.0.1:9")
    sync = choose(WeightKind.FULL, [nowhere], way="ipc")
    assert isinstance(sync, TransferSync)
    if not torch.cuda.is_available():
        assert not share_gpu([nowhere])
