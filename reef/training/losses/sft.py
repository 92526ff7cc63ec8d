"""Plain supervised learning: the likelihood of what was demonstrated. No policy generated it, so there is neither ratio nor reward.

Sample loss = mean_t[−log π(y_t)] over the demonstrated tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import Tensor

from reef.training.losses.contract import Inputs, Loss, Prepared
from reef.training.losses.masks import mean_B
from reef.training.sample import Sample


def sft_loss(logprobs_BT: Tensor, *, mask_BT: Tensor) -> Tensor:
    """The loss of each sample: (B,).

    Args:
        logprobs_BT: log π of the tokens, natural; a gradient reaches it.
        mask_BT: bool, True on demonstrated tokens.
    """
    return mean_B(-logprobs_BT, mask_BT)


class SFT(Loss):
    """The loss of supervised fine-tuning. It has no options; rewards and advantages of samples are not looked at."""

    name = "sft"

    def _prepare(
        self,
        samples: Sequence[Sample],
        *,
        values: Sequence[Sequence[float]] | None,
        base_logprobs: Sequence[Sequence[float]] | None,
        skipped: Counter[str],
    ) -> Prepared:
        return Prepared.of(samples, skipped=skipped)

    def _compute(self, inputs: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
        return sft_loss(inputs.logprobs_BT, mask_BT=inputs.mask_BT), {
            "likelihood": mean_B(inputs.logprobs_BT.detach().exp(), inputs.mask_BT)
        }
