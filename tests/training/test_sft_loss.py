"""The loss of supervised learning is the likelihood of what was demonstrated, and nothing of a policy that sampled reaches it."""

from __future__ import annotations

import pytest

from tests.support import loss_reference as reference

torch = pytest.importorskip("torch")

from reef.training import losses  # noqa: E402
from reef.training.losses.contract import Inputs  # noqa: E402
from reef.training.losses.sft import sft_loss  # noqa: E402
from reef.training.sample import Sample  # noqa: E402

MASK = [[False, True, False, True], [False, True, True, True]]


def numbers(seed: int) -> torch.Tensor:
    return -4.0 * torch.rand(2, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 0.01


@pytest.mark.parametrize("seed", range(10))
def test_it_equals_the_plain_reference_whatever_was_sampled_before(seed: int) -> None:
    logprobs_BT, mask_BT = numbers(seed), torch.tensor(MASK)
    expected = [reference.over_generated(mask, lambda t, row=row: -row[t]) for mask, row in zip(MASK, logprobs_BT.tolist(), strict=True)]
    for old_BT in (numbers(seed + 100), torch.zeros(2, 4, dtype=torch.float64)):
        output = losses.load("sft")(Inputs(logprobs_BT=logprobs_BT, old_logprobs_BT=old_BT, mask_BT=mask_BT))
        assert torch.allclose(output.loss_B, torch.tensor(expected, dtype=torch.float64), rtol=1e-12)


def test_its_gradient_passes_a_check_and_is_zero_where_nothing_was_demonstrated() -> None:
    logprobs_BT, mask_BT = numbers(1).requires_grad_(), torch.tensor(MASK)
    assert torch.autograd.gradcheck(lambda given: sft_loss(given, mask_BT=mask_BT), (logprobs_BT,))
    sft_loss(logprobs_BT, mask_BT=mask_BT).sum().backward()
    assert logprobs_BT.grad is not None
    assert torch.equal(logprobs_BT.grad != 0, mask_BT)


def test_no_reward_is_needed() -> None:
    shown = Sample(tokens=(1, 2, 3), mask=(False, True, True), old_logprobs=(0.0,) * 3, releases=(None,) * 3)
    prepared = losses.load("sft").prepare([shown])
    assert prepared.samples == (shown,)
    assert not prepared.skipped
