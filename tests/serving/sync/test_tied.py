"""Layers that share a weight, where each computes with a packed copy of it: a reload packs the one's anew, and Reef the other's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from reef.serving.sync.worker import repack_tied  # noqa: E402


class Packing(torch.nn.Module):
    """As a layer of vLLM on a CPU."""

    def __init__(self, weight: torch.nn.Parameter) -> None:
        super().__init__()
        self.weight = weight
        self.quant_method = SimpleNamespace(process_weights_after_loading=Packing.pack)
        self.pack()

    def pack(self) -> None:
        packed = self.weight.detach().clone()
        self.cpu_linear = lambda x: x @ packed.T


class Model(torch.nn.Module):
    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embed_tokens = Packing(torch.nn.Parameter(torch.ones(3, 2)))
        self.lm_head = Packing(self.embed_tokens.weight if tied else torch.nn.Parameter(torch.ones(3, 2)))


class Wrapped(torch.nn.Module):
    """As a layer of vLLM that LoRAs may be added to."""

    def __init__(self, base_layer: Packing) -> None:
        super().__init__()
        self.base_layer = base_layer


def answer(model: Model) -> list[float]:
    return model.lm_head.cpu_linear(torch.ones(2)).tolist()


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "language_model.model.embed_tokens.weight", "lm_head.weight"])
def test_an_output_layer_answers_with_the_embedding_that_was_loaded(name: str) -> None:
    model = Model(tied=True)
    model.embed_tokens.weight.data.fill_(5)
    assert answer(model) == [2, 2, 2]
    repack_tied(model, [name, "model.layers.0.norm.weight"])
    assert answer(model) == [10, 10, 10]


def test_so_it_does_where_loras_wrap_the_embedding() -> None:
    model = Model(tied=True)
    model.embed_tokens.weight.data.fill_(5)
    model.embed_tokens = Wrapped(model.embed_tokens)
    repack_tied(model, ["model.embed_tokens.weight"])
    assert answer(model) == [10, 10, 10]


def test_nothing_is_packed_where_no_weight_is_shared_or_another_was_loaded() -> None:
    for model, loaded in ((Model(tied=False), ["model.embed_tokens.weight"]), (Model(tied=True), ["model.layers.0.mlp.weight"])):
        before = model.lm_head.cpu_linear
        repack_tied(model, loaded)
        assert model.lm_head.cpu_linear is before
