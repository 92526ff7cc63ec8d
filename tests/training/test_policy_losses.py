"""Policy-gradient losses equal a plain reference, their gradients are right, and what they must not look at changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import loss_reference as reference

torch = pytest.importorskip("torch")

from reef.errors import ConfigError  # noqa: E402
from reef.training import losses  # noqa: E402
from reef.training.losses.contract import Inputs, Need  # noqa: E402
from reef.training.losses.critic import critic_loss  # noqa: E402
from reef.training.losses.grpo import grpo_loss  # noqa: E402
from reef.training.losses.ppo_clip import ppo_clip_loss  # noqa: E402
from reef.training.losses.sao import sao_loss  # noqa: E402
from reef.training.losses.ttt_discover import discover_loss  # noqa: E402

SEEDS = range(20)


def batch(seed: int, *, samples: int = 3, length: int = 7) -> dict[str, Any]:
    """Random log-probabilities, masks with at least one token, and advantages."""
    made = torch.Generator().manual_seed(seed)

    def random() -> Any:
        return torch.rand(samples, length, generator=made, dtype=torch.float64)

    mask_BT = random() < 0.6
    mask_BT[:, 0], mask_BT[:, 1] = False, True
    logprobs_BT = -4.0 * random() - 0.01
    return {
        "logprobs_BT": logprobs_BT,
        "old_logprobs_BT": (logprobs_BT + 1.2 * (random() - 0.5)).clamp(max=-0.001),
        "mask_BT": mask_BT,
        "advantages_BT": 4.0 * random() - 2.0,
        "base_logprobs_BT": -4.0 * random() - 0.01,
    }


def rows(data: dict[str, Any], row: int) -> tuple[Any, ...]:
    names = ("logprobs_BT", "old_logprobs_BT", "mask_BT", "advantages_BT")
    return tuple(data[name][row].tolist() for name in names)


def call(loss: Callable[..., Any], data: dict[str, Any], logprobs_BT: Any = None, **options: Any) -> Any:
    given = data["logprobs_BT"] if logprobs_BT is None else logprobs_BT
    return loss(given, **{name: data[name] for name in ("old_logprobs_BT", "mask_BT", "advantages_BT")}, **options)


def assert_close(found: Any, expected: list[float]) -> None:
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_loss_equals_the_plain_reference(seed: int) -> None:
    data, bounds = batch(seed), {"low": 0.3, "high": 0.25}
    each = [rows(data, row) for row in range(3)]
    assert_close(call(sao_loss, data, **bounds), [reference.sao(*row, **bounds) for row in each])
    assert_close(call(ppo_clip_loss, data, **bounds), [reference.ppo(*row, **bounds) for row in each])
    assert_close(call(discover_loss, data), [reference.discover(*row) for row in each])
    assert_close(call(grpo_loss, data, **bounds), [reference.sao(*row, **bounds) for row in each])
    pulled = [
        reference.ppo(*row, **bounds) + 0.3 * reference.kl_to_base(row[0], data["base_logprobs_BT"][place].tolist(), row[2])
        for place, row in enumerate(each)
    ]
    assert_close(call(grpo_loss, data, surrogate="clip", kl=0.3, base_logprobs_BT=data["base_logprobs_BT"], **bounds), pulled)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_gradient_of_each_differentiable_surrogate_passes_a_check(seed: int) -> None:
    data, bounds = batch(seed), {"low": 0.3, "high": 0.25}
    start_BT = data["logprobs_BT"].clone().requires_grad_()
    base = {"surrogate": "clip", "kl": 0.3, "base_logprobs_BT": data["base_logprobs_BT"]}
    assert torch.autograd.gradcheck(lambda logprobs_BT: call(ppo_clip_loss, data, logprobs_BT, **bounds), (start_BT,))
    assert torch.autograd.gradcheck(lambda logprobs_BT: call(discover_loss, data, logprobs_BT), (start_BT,))
    assert torch.autograd.gradcheck(lambda logprobs_BT: call(grpo_loss, data, logprobs_BT, **base, **bounds), (start_BT,))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_trusted_ratio_is_a_constant_to_the_gradient(seed: int) -> None:
    """The gradient is that of the same loss with f(r) frozen, which passes a check; f(r) is zero outside its range."""
    data, low, high = batch(seed), 0.3, 0.25
    logprobs_BT = data["logprobs_BT"].clone().requires_grad_()
    (found_BT,) = torch.autograd.grad(call(sao_loss, data, logprobs_BT, low=low, high=high).sum(), logprobs_BT)
    ratios_BT = (data["logprobs_BT"] - data["old_logprobs_BT"]).exp()
    frozen_BT = torch.where((ratios_BT > 1 - low) & (ratios_BT < 1 + high), ratios_BT, 0.0) * data["advantages_BT"]

    def surrogate(values_BT: Any) -> Any:
        mask_BT = data["mask_BT"]
        return (-frozen_BT * values_BT * mask_BT).sum(dim=1) / mask_BT.sum(dim=1)

    assert torch.autograd.gradcheck(surrogate, (logprobs_BT,))
    (expected_BT,) = torch.autograd.grad(surrogate(logprobs_BT).sum(), logprobs_BT)
    assert torch.allclose(found_BT, expected_BT, rtol=1e-12, atol=0.0)
    assert (frozen_BT[data["mask_BT"]] == 0.0).any() or seed not in (0, 1, 2), "no token was outside the range: the test shows too little"


def test_the_critics_gradient_passes_a_check_and_reaches_the_values_alone() -> None:
    data = batch(0)
    values_BT, returns_BT = data["logprobs_BT"].clone().requires_grad_(), data["advantages_BT"].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda values: critic_loss(values, returns_BT.detach(), data["mask_BT"]), (values_BT,))
    critic_loss(values_BT, returns_BT, data["mask_BT"]).sum().backward()
    assert returns_BT.grad is None


NAMES = ("sao", "grpo", "ppo_clip", "ttt_discover")


def inputs_of(data: dict[str, Any], logprobs_BT: Any = None, **more: Any) -> Inputs:
    kept = {name: value for name, value in data.items() if name != "logprobs_BT"}
    return Inputs(logprobs_BT=data["logprobs_BT"] if logprobs_BT is None else logprobs_BT, **kept, **more)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_generated_changes_neither_loss_nor_gradient(name: str) -> None:
    data, loss = batch(3), losses.load(name)
    outside_BT = ~data["mask_BT"]
    other = {key: value.masked_fill(outside_BT, -7.0) if value.dtype == torch.float64 else value for key, value in data.items()}
    found = []
    for each in (data, other):
        logprobs_BT = each["logprobs_BT"].clone().requires_grad_()
        output = loss(inputs_of(each, logprobs_BT))
        output.total(samples=3).backward()
        found.append((output.loss_B.detach(), logprobs_BT.grad))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert (found[0][1][outside_BT] == 0.0).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("broken", [math.nan, math.inf, 1000.0])
def test_a_sample_whose_loss_is_not_finite_is_left_out_and_counted(name: str, broken: float) -> None:
    data, loss = batch(4), losses.load(name, options={"surrogate": "clip"} if name == "grpo" else {})
    rest = {key: value[[0, 2]] for key, value in data.items()}
    alone = loss(inputs_of(rest))
    spoiled_BT = data["logprobs_BT"].clone()
    spoiled_BT[1, 1] = broken
    data["advantages_BT"][1, 1] = -1.0
    logprobs_BT = spoiled_BT.requires_grad_()
    output = loss(inputs_of(data, logprobs_BT))
    if name == "sao" and broken == 1000.0:  # far out of the trusted range, and masked for that
        assert output.used_B.all()
        return
    assert dict(output.skipped) == {"not_finite": 1}
    assert torch.equal(output.used_B, torch.tensor([True, False, True]))
    assert output.loss_B[1] == 0.0
    assert torch.allclose(output.loss_B[[0, 2]], alone.loss_B)
    output.total(samples=2).backward()
    assert logprobs_BT.grad is not None
    assert (logprobs_BT.grad[1] == 0.0).all()
    assert logprobs_BT.grad.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_mask_is_counted_and_gives_no_gradient(name: str) -> None:
    data = batch(5)
    data["mask_BT"][2] = False
    logprobs_BT = data["logprobs_BT"].clone().requires_grad_()
    output = losses.load(name)(inputs_of(data, logprobs_BT))
    output.total(samples=2).backward()
    assert dict(output.skipped) == {"empty_mask": 1}
    assert logprobs_BT.grad is not None
    assert (logprobs_BT.grad[2] == 0.0).all()


@pytest.mark.parametrize("name", NAMES)
def test_micro_batches_add_up_to_the_whole_step(name: str) -> None:
    data, loss, weights_B = batch(6, samples=5), losses.load(name), torch.tensor([1.0, 0.5, 2.0, 1.0, 0.0], dtype=torch.float64)
    whole = loss(inputs_of(data, weights_B=weights_B)).total(samples=5)
    parts = [slice(0, 2), slice(2, 3), slice(3, 5)]
    cut = [loss(inputs_of({key: value[part] for key, value in data.items()}, weights_B=weights_B[part])) for part in parts]
    assert torch.allclose(sum(part.total(samples=5) for part in cut), whole)


def test_a_loss_is_made_by_name_and_an_unknown_option_is_refused() -> None:
    assert set(NAMES) < set(losses.names())
    assert losses.load("sao", options={"low": 0.3, "high": 5.0}).needs == {Need.VALUES}
    assert losses.load("grpo").needs == frozenset()
    assert losses.load("grpo", options={"kl": 0.1}).needs == {Need.BASE_LOGPROBS}
    with pytest.raises(ConfigError, match="epsilon"):
        losses.load("sao", options={"epsilon": 0.2})
    with pytest.raises(ConfigError, match="high"):
        losses.load("sao", options={"high": math.inf})
    with pytest.raises(ConfigError, match="no loss 'reinforce'"):
        losses.load("reinforce")
    for name in losses.names():
        assert losses.load(name).name == name
