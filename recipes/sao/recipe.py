"""The recipe of SAO; the loss is in :mod:`reef.training.losses.sao`."""

from __future__ import annotations

from reef.learner.weights import Scored, WeightRecipe


class SAORecipe(WeightRecipe):
    """Each report with a score makes an attempt of the records it quotes; no attempt needs another. Options: ``loss``, ``max_tokens``."""

    name = "sao"
    loss = "sao"
    report_schema = Scored
