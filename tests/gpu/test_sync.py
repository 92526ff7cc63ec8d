"""Weight sync on GPUs: `make test-gpu`. Skips, saying why, where there is none.

Over NCCL the trainer needs a GPU that no engine uses, so with two or more the engine gets the last; with a single one, gloo through the
host and CUDA IPC are what is measured. Prints seconds, bytes, the pause and the memory of the GPU.

This has not been run on a GPU yet. What of it needs none is in tests/serving/sync.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")
if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)

from reef.errors import WeightSyncTimeout  # noqa: E402
from reef.serving.models import tiny  # noqa: E402
from reef.serving.sync.choose import choose, share_gpu  # noqa: E402
from reef.serving.sync.held import Version  # noqa: E402
from reef.serving.sync.interface import WeightKind, weights_in  # noqa: E402
from reef.serving.sync.ipc import _possible  # noqa: E402
from reef.serving.sync.shared import Place, gpus_here  # noqa: E402
from reef.serving.sync.transfer import TransferSync  # noqa: E402
from tests.serving.sync.engine import TinyEngine, start  # noqa: E402

GPUS = torch.cuda.device_count()
TOLERANCE = 1e-3
"""In float32; a GPU sums in another order than a CPU."""
EXACT = {"TRITON_F32_DEFAULT": "ieee"}
"""Of the engine's attention, which takes float32 by Triton alone: that rounds its factors to 10 bits unless told otherwise."""


def number_of(place: int) -> str:
    """What a GPU that this process sees is called outside of it: it may itself see only some."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return seen.split(",")[place].strip() if seen else str(place)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for seed in range(2):
        tiny(folder / str(seed), seed=seed)
    return folder


@pytest.fixture(scope="module")
def engine(models: Path, tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    environment = {"CUDA_VISIBLE_DEVICES": number_of(GPUS - 1), **EXACT}
    arguments = ("--gpu-memory-utilization", "0.3")  # on a single GPU this process has a context beside it
    logs = tmp_path_factory.mktemp("engine")
    # Without LoRAs: vLLM's kernels for those take no float32.
    with start(models / "0", logs=logs, on="cuda", environment=environment, lora_slots=0, extra=arguments) as running:
        yield running


def expected(folder: Path, prompt: list[int], tokens: list[int]) -> list[float]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logprobs_TV = torch.log_softmax(model(torch.tensor([[*prompt, *tokens]])).logits[0], dim=-1)
    return [float(logprobs_TV[len(prompt) - 1 + place, token]) for place, token in enumerate(tokens)]


@pytest.mark.parametrize("channel", ["gloo", "ipc", pytest.param("nccl", marks=pytest.mark.skipif(GPUS < 2, reason="NCCL wants two GPUs"))])
def test_weights_reach_a_gpu_and_come_back_to_the_bit(
    engine: TinyEngine, models: Path, channel: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.serving.sync.engine import PROMPT

    if channel == "nccl":
        torch.cuda.set_device(0)  # not the engine's, which IPC has made this process's own
    sync = TransferSync([engine.client], channel=channel)
    sync.restore(weights_in(models / "0", name="start.0"))
    before = engine.complete()
    weights = weights_in(models / "1", name="default.2")
    staged = sync.stage(weights)
    swap = sync.activate(weights)
    tokens, logprobs = engine.complete()
    assert logprobs == pytest.approx(expected(models / "1", PROMPT, tokens), abs=TOLERANCE)
    assert tokens != before[0]
    sync.verify(weights)
    sync.roll_back()
    assert engine.complete()[0] == before[0]
    assert engine.complete()[1] == pytest.approx(before[1], abs=1e-6)
    free, total = torch.cuda.mem_get_info(GPUS - 1)
    told = {"channel": channel, "gpus": GPUS, "stage s": staged.seconds, "bytes": staged.size_bytes, "pause s": swap.pause_s}
    with capsys.disabled():
        print(json.dumps({**told, "device memory used": total - free}))


def test_where_trainer_and_engine_share_a_gpu_its_memory_is_what_they_share(engine: TinyEngine) -> None:
    assert share_gpu([engine.client])
    sync = choose(WeightKind.FULL, [engine.client])
    assert isinstance(sync, TransferSync)
    assert sync._channel == "ipc"
    here = Place.here()
    assert here.gpu in gpus_here()
    assert _possible([here]) == ["device", "host"]


def test_the_memory_that_was_shared_is_given_back(tmp_path: Path) -> None:
    from tests.serving.sync.ranks import ranks
    from tests.serving.sync.test_ranks import transfer, weights

    version = Version("new", weights(1, size=400_000))
    torch.cuda.ipc_collect()
    before = torch.cuda.memory_allocated()
    with ranks(2, base=tmp_path / "none") as both:  # on the current device, as this process
        transfer(version, both, channel="ipc", deadline_s=120)
        assert [rank.result() for rank in both] == [version.digest()] * 2
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.skipif(GPUS < 2, reason="NCCL wants two GPUs")
def test_over_nccl_an_engine_that_does_not_answer_is_named(engine: TinyEngine, models: Path) -> None:
    import signal

    workers = engine.processes("Worker") + engine.processes("EngineCor")
    assert workers
    for process in workers:
        os.kill(process, signal.SIGSTOP)
    try:
        with pytest.raises(WeightSyncTimeout, match=engine.client.url):
            TransferSync([engine.client], channel="nccl").stage(weights_in(models / "1", name="default.3"), deadline_s=5)
    finally:
        for process in workers:
            os.kill(process, signal.SIGCONT)
    assert engine.complete()
