"""Samples cut into what fits in memory at once, and padded. How they are cut changes no gradient: a loss is a sum over samples.

Only generated tokens are compared with anything, so everything but what the model reads has G columns, the generated tokens of a sample in
their order, and not T.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reef.training.sample import Sample


@dataclass(frozen=True, slots=True)
class Reading:
    """What a model reads, padded on the right, and where its hidden states predict a generated token."""

    tokens_BT: Tensor
    attended_BT: Tensor
    """1 on tokens, 0 on padding."""
    before_BG: Tensor
    """The position before each generated token; 0 on padding."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Some samples of one update."""

    samples: tuple[Sample, ...]
    real: bool = True
    """False for one that a rank computes only because the others still do, and that counts for nothing."""

    def reading(self, device: torch.device) -> Reading:
        """The samples as the policy reads them."""
        return _reading([(sample.tokens, _generated(sample)) for sample in self.samples], device)

    def taught(self, device: torch.device) -> Reading:
        """The samples as their teacher reads them; one without a teacher as the policy does."""
        return _reading([(s.teacher.tokens, s.teacher.positions) if s.teacher else (s.tokens, _generated(s)) for s in self.samples], device)

    def ids(self, device: torch.device) -> Tensor:
        """The generated tokens, (B, G)."""
        return _pad([[sample.tokens[at] for at in _generated(sample)] for sample in self.samples], torch.long, device)

    def mask(self, device: torch.device) -> Tensor:
        """True where there is a generated token, (B, G)."""
        return _pad([[True] * sample.generated for sample in self.samples], torch.bool, device)

    def column(self, rows: Sequence[Sequence[float]], device: torch.device) -> Tensor:
        """Numbers that stand at the tokens of each sample, at the generated ones alone, (B, G)."""
        picked = [[row[at] for at in _generated(sample)] for sample, row in zip(self.samples, rows, strict=True)]
        return _pad(picked, torch.float32, device)

    def top(self, device: torch.device) -> tuple[Tensor, Tensor] | None:
        """Ids and log-probabilities of the likeliest tokens, (B, G, K); None where a sample has none."""
        rows = [sample.top for sample in self.samples]
        if any(row is None for row in rows):
            return None
        widest = min(len(row.ids[0]) if row and row.ids else 0 for row in rows)
        longest = max(sample.generated for sample in self.samples)
        ids = torch.zeros((len(rows), longest, widest), dtype=torch.long)
        logprobs = torch.zeros((len(rows), longest, widest))
        for number, row in enumerate(rows):
            assert row is not None
            ids[number, : len(row.ids)] = torch.tensor([each[:widest] for each in row.ids], dtype=torch.long)
            logprobs[number, : len(row.ids)] = torch.tensor([each[:widest] for each in row.logprobs])
        return ids.to(device), logprobs.to(device)


def cut(samples: Sequence[Sample], *, tokens: int, ranks: int = 1) -> list[list[MicroBatch]]:
    """Micro-batches for each rank, as many for one as for another: a collective is entered by all or by none.

    Args:
        samples: of one update, at least one.
        tokens: that a micro-batch has at most, padding included, unless it is one sample that is longer.
        ranks: among how many they are dealt out.
    """
    by_length = sorted(samples, key=_length)
    dealt = [_cut(by_length[rank::ranks], tokens=tokens) for rank in range(ranks)]
    most = max(len(batches) for batches in dealt)
    idle = MicroBatch((by_length[0],), real=False)
    return [[*batches, *[idle] * (most - len(batches))] for batches in dealt]


def _cut(by_length: Sequence[Sample], *, tokens: int) -> list[MicroBatch]:
    batches: list[list[Sample]] = []
    for sample in by_length:
        if batches and _length(sample) * (len(batches[-1]) + 1) <= tokens:
            batches[-1].append(sample)
        else:
            batches.append([sample])
    return [MicroBatch(tuple(batch)) for batch in batches]


def _length(sample: Sample) -> int:
    return max(len(sample.tokens), len(sample.teacher.tokens) if sample.teacher else 0)


def _generated(sample: Sample) -> tuple[int, ...]:
    return tuple(at for at, generated in enumerate(sample.mask) if generated)


def _reading(rows: Sequence[tuple[Sequence[int], Sequence[int]]], device: torch.device) -> Reading:
    return Reading(
        tokens_BT=_pad([tokens for tokens, _ in rows], torch.long, device),
        attended_BT=_pad([[1] * len(tokens) for tokens, _ in rows], torch.long, device),
        before_BG=_pad([[at - 1 for at in places] for _, places in rows], torch.long, device),
    )


def _pad(rows: Sequence[Sequence[float]], dtype: torch.dtype, device: torch.device) -> Tensor:
    padded = torch.zeros((len(rows), max((len(row) for row in rows), default=0)), dtype=dtype)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = torch.tensor(row, dtype=dtype)
    return padded.to(device)
