"""What a worker holds, how a transfer is cut into buckets, and which way is taken: without an engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.errors import ConfigError, InvalidRequest, WeightSyncError
from reef.serving.engine.client import EngineClient
from reef.serving.sync.channel import Entry, Manifest, Ticket, buckets, open_channel
from reef.serving.sync.choose import choose, engine_flags
from reef.serving.sync.held import layer_of
from reef.serving.sync.interface import WeightKind, candidate_name, release_name, weights_in
from reef.serving.sync.lora import LoraSync
from reef.serving.sync.transfer import TransferSync

NOWHERE = EngineClient("http://127.0.0.1:9", timeout_s=1)


@given(sizes=st.lists(st.integers(0, 40), max_size=8), bucket=st.integers(1, 16))
def test_buckets_carry_every_byte_once_and_are_full_but_for_the_last(sizes: list[int], bucket: int) -> None:
    cut = list(buckets(sizes, bucket_bytes=bucket))
    carried = [(piece.tensor, piece.start + offset) for pieces in cut for piece in pieces for offset in range(piece.length)]
    assert carried == [(tensor, byte) for tensor, size in enumerate(sizes) for byte in range(size)]
    for pieces in cut:
        assert [piece.at for piece in pieces] == [sum(other.length for other in pieces[:place]) for place in range(len(pieces))]
    assert all(sum(piece.length for piece in pieces) == bucket for pieces in cut[:-1])


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.layers.3.self_attn.q_proj.weight", "model.layers.3"),
        ("model.layers.3.mlp.experts.7.w1.weight", "model.layers.3"),
        ("visual.blocks.0.norm.weight", "visual.blocks.0"),
        ("model.embed_tokens.weight", "model.embed_tokens.weight"),
        ("lm_head.weight", "lm_head.weight"),
    ],
)
def test_what_an_engine_fuses_is_of_one_layer(name: str, layer: str) -> None:
    assert layer_of(name) == layer


def test_a_tensor_that_changed_brings_its_whole_layer_and_no_other() -> None:
    torch = pytest.importorskip("torch")
    from reef.serving.sync.held import Version, to_apply

    names = ["model.embed_tokens.weight", "model.layers.0.q.weight", "model.layers.0.k.weight", "model.layers.1.q.weight"]
    old = Version("old", {name: torch.ones(2) for name in names})
    new = old.with_changes("new", {"model.layers.0.k.weight": torch.zeros(2)}, {})
    assert to_apply(old, new) == ["model.layers.0.q.weight", "model.layers.0.k.weight"]
    assert to_apply(new, old) == to_apply(old, new)
    assert to_apply(None, new) == names
    assert to_apply(new, new) == []
    assert old.digest() != new.digest()
    assert old.digest() == Version("other", dict(reversed(old.tensors.items()))).digest()


def test_tickets_and_manifests_survive_the_wire() -> None:
    ticket = Ticket("t", "default.2", "gloo", "127.0.0.1", 9, first_rank=1, world=2, deadline_s=5.0)
    assert Ticket.parse(ticket.text()) == ticket
    assert ticket.patience_s == 4.0
    manifest = Manifest((Entry("a", "bfloat16", (2, 3), "d"), Entry("scalar", "int64", (), "e")), "all")
    assert Manifest.parse(manifest.text()) == manifest


def test_a_candidate_never_has_the_name_of_a_release() -> None:
    assert release_name("default", 12) == "default.12"
    assert candidate_name("default", "c0ffee") == "default.c0ffee"
    assert candidate_name("default", "12") == "default.candidate-12"


def test_weights_are_known_by_what_lies_in_their_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="holds no weights"):
        weights_in(tmp_path, name="default.1")
    (tmp_path / "pytorch_model.bin").touch()
    (tmp_path / "config.json").touch()
    with pytest.raises(InvalidRequest, match="holds no weights"):
        weights_in(tmp_path, name="default.1")
    (tmp_path / "model.safetensors").touch()
    assert weights_in(tmp_path, name="default.1").kind is WeightKind.FULL
    (tmp_path / "adapter_config.json").touch()
    assert weights_in(tmp_path, name="default.1").kind is WeightKind.LORA


def test_the_way_is_chosen_by_what_the_weights_are_and_what_was_asked_for() -> None:
    assert isinstance(choose(WeightKind.LORA, [NOWHERE], way="nccl"), LoraSync)
    assert isinstance(choose(WeightKind.FULL, [NOWHERE], way="nccl"), TransferSync)
    with pytest.raises(ConfigError, match="need the folder"):
        choose(WeightKind.FULL, [NOWHERE])  # nobody is there who could have our worker
    with pytest.raises(ConfigError, match="no way"):
        choose(WeightKind.FULL, [NOWHERE], way="pigeon")
    with pytest.raises(ConfigError, match="no engine"):
        choose(WeightKind.FULL, [])
    assert "reef.serving.sync.worker.ReefWorker" in engine_flags()


def test_an_engine_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").touch()
    (tmp_path / "adapter_model.safetensors").touch()
    weights = weights_in(tmp_path, name="default.1")
    with pytest.raises(WeightSyncError, match=r"http://127\.0\.0\.1:9 failed to load default\.1"):
        LoraSync([NOWHERE], keep=1).stage(weights, deadline_s=2)


def test_a_file_that_is_no_safetensors_is_refused_before_any_engine_is_asked(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    (tmp_path / "config.json").touch()
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x04pickle")
    with pytest.raises(WeightSyncError, match="cannot be read"):
        TransferSync([NOWHERE], channel="gloo").stage(weights_in(tmp_path, name="default.1"))


def test_nccl_without_a_gpu_says_so() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("vllm")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(RuntimeError, match="needs a GPU"):
        open_channel("nccl", store=None, rank=0, world=2, host="127.0.0.1", timeout_s=1)
    with pytest.raises(ValueError, match="no channel"):
        open_channel("pigeon", store=None, rank=0, world=2, host="127.0.0.1", timeout_s=1)
