"""What a trainer is fed: token sequences with what was recorded when they were generated. Plain tuples, nothing of torch.

A sample is checked where it is made, so that a loss never meets unequal lengths or a number that is not finite.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from reef.errors import Unprocessable


class InvalidSample(Unprocessable):
    """A sample that contradicts itself. It is skipped and counted, never trained.

    Args:
        reason: one word for the count (:attr:`reef.training.batches.Batch.skipped`).
    """

    type = "invalid_sample_error"

    def __init__(self, message: str, *, hint: str = "", reason: str = "invalid") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Teacher:
    """The same generated tokens behind another context: with a demonstration, a hint or a sibling that succeeded in front.

    What the teacher says of a generated token is compared with what the student says of it. The teacher may be the same model, an
    average of its past or a frozen one: that is the recipe's choice, not said here.
    """

    tokens: tuple[int, ...]
    """The whole sequence that the teacher reads."""
    positions: tuple[int, ...]
    """For each generated token of the sample, in order, where it stands in :attr:`tokens`."""

    @classmethod
    def with_prompt(cls, prompt: Sequence[int], *, sample_tokens: Sequence[int], mask: Sequence[bool]) -> Teacher:
        """The sample with everything before its first generated token replaced by ``prompt``; what follows is kept as it is."""
        first = next((at for at, generated in enumerate(mask) if generated), len(mask))
        shift = len(prompt) - first
        return cls(
            tokens=(*prompt, *sample_tokens[first:]),
            positions=tuple(at + shift for at, generated in enumerate(mask) if generated),
        )


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The likeliest tokens at each generated position under the policy that sampled, where they were kept."""

    ids: tuple[tuple[int, ...], ...]
    """One row for each generated token, in order; every row as long as the others."""
    logprobs: tuple[tuple[float, ...], ...]
    """Natural, of :attr:`ids`, row by row."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sequence to train on: one turn, or the turns of a session that extend each other token by token.

    Everything per token is as long as :attr:`tokens`, and stands at the token it is about: ``old_logprobs[t]`` is the log-probability of
    ``tokens[t]`` given ``tokens[:t]``.
    """

    tokens: tuple[int, ...]
    mask: tuple[bool, ...]
    """True on the tokens that the policy generated: only they are trained. Never on the first, which nothing predicts."""
    old_logprobs: tuple[float, ...]
    """Under the policy that sampled, natural; 0.0 where the mask is False."""
    releases: tuple[int | None, ...]
    """The release that generated the token; None where the mask is False, and where it is not known."""
    reward: float | None = None
    """Of the whole sequence; None where nobody has judged it."""
    group: str = ""
    """Siblings, the attempts at one prompt, share one; empty: it has none."""
    rollout: str = ""
    """The samples that one attempt was split into share one, and count once in their group; empty: it is the whole of its attempt."""
    records: tuple[str, ...] = ()
    """The records that are consumed with it, oldest first."""
    advantages: tuple[float, ...] | None = None
    """Per token, 0.0 where the mask is False; None: the loss computes them of the rewards."""
    weight: float = 1.0
    """What its loss is multiplied by."""
    teacher: Teacher | None = None
    """What distillation compares with."""
    top: TopTokens | None = None
    session: str | None = None
    votes: tuple[float, ...] = field(default=())
    """A judgement for each generated token, in order (OpenClaw-RL: the vote on the turn that it belongs to); empty: there is none."""

    def __post_init__(self) -> None:
        length = len(self.tokens)
        for name in ("mask", "old_logprobs", "releases", "advantages"):
            column = getattr(self, name)
            if column is not None and len(column) != length:
                raise InvalidSample(
                    f"a sample has {length} tokens, and its {name} has {len(column)} items", hint="Give one item per token."
                )
        if self.mask[:1] == (True,):
            raise InvalidSample("a sample's first token cannot be a generated one", hint="Keep the prompt's tokens, at least one.")
        self._refuse_numbers()
        generated = sum(self.mask)
        if self.votes and len(self.votes) != generated:
            raise InvalidSample(f"a sample has {generated} generated tokens and {len(self.votes)} votes")
        if self.teacher is not None:
            self._refuse_teacher(self.teacher, generated=generated)
        if self.top is not None:
            self._refuse_top(self.top, generated=generated)

    def _refuse_numbers(self) -> None:
        numbers = [("old_logprobs", self.old_logprobs), ("advantages", self.advantages or ()), ("weight", (self.weight,))]
        numbers += [("votes", self.votes), ("reward", () if self.reward is None else (self.reward,))]
        for name, values in numbers:
            if not all(map(math.isfinite, values)):
                raise InvalidSample(f"a sample's {name} has a number that is not finite", reason="not_finite")
        if any(value > 0.0 for value in self.old_logprobs):
            raise InvalidSample("a sample's old_logprobs has a log-probability above zero", hint="They are natural logarithms.")
        if any(value and not generated for value, generated in zip(self.old_logprobs, self.mask, strict=True)):
            raise InvalidSample("a sample has an old log-probability on a token that was not generated")

    def _refuse_teacher(self, teacher: Teacher, *, generated: int) -> None:
        if len(teacher.positions) != generated:
            raise InvalidSample(f"a sample has {generated} generated tokens, and its teacher aligns {len(teacher.positions)}")
        own = (token for token, is_generated in zip(self.tokens, self.mask, strict=True) if is_generated)
        for token, position in zip(own, teacher.positions, strict=True):
            if not 0 < position < len(teacher.tokens) or teacher.tokens[position] != token:
                raise InvalidSample(f"a sample's generated token {token} is not at position {position} of what its teacher reads")

    def _refuse_top(self, top: TopTokens, *, generated: int) -> None:
        if len(top.ids) != generated or [len(row) for row in top.ids] != [len(row) for row in top.logprobs]:
            raise InvalidSample(f"a sample has {generated} generated tokens, and the rows of its top tokens do not match them")
        if len({len(row) for row in top.ids}) > 1:
            raise InvalidSample("the rows of a sample's top tokens differ in length")
        if not all(math.isfinite(value) for row in top.logprobs for value in row):
            raise InvalidSample("a sample's top tokens have a number that is not finite", reason="not_finite")

    @property
    def generated(self) -> int:
        """How many tokens it trains on."""
        return sum(self.mask)

    def replace(self, **changes: object) -> Sample:
        """The same with other fields, checked again."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]
