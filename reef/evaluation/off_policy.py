"""What another choice among upstreams would have earned, told from the sessions that the head's choice drew. Pure.

Each session gives one number whose mean is the difference in worth between candidate and head, whatever the upstreams are like (the doubly
robust estimate, Dudík, Langford and Li 2011, arXiv 1103.4601): with p the chance of an arm under candidate and head, and f its worth as
foretold from *other* sessions,

    d = (p_candidate(a) − p_head(a)) / p_head(a) · (reward − f(a)) + Σ_b (p_candidate(b) − p_head(b)) · f(b)

A wrong f costs only evidence. p_head is known exactly: the draw is a hash (:mod:`reef.serving.choosing`), and never below explore / arms.
So d has a bound, and d divided by it goes to the gate (:mod:`reef.evaluation.gate`) as the difference of a pair, at the candidate's share
of the chain's error. The candidate, f and the bound are fixed before the first of these sessions is looked at.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from reef.evaluation.eprocess import TIE
from reef.evaluation.gate import Gate, Terms
from reef.serving.choosing import Choice
from reef.types import Verdict

FORMAT = "off-policy-1"
"""Of ``terms``: there are no trials to run a gate on again, but the differences are kept."""


@dataclasses.dataclass(frozen=True, slots=True)
class Draw:
    """One session, and the arm that the head drew for it."""

    report: str
    features: tuple[float, ...]
    arm: str
    score: float
    prompt_tokens: int
    completion_tokens: int

    def reward(self, choice: Choice) -> float:
        """What it was worth, by the terms of a choice."""
        return choice.reward(self.arm, score=self.score, prompt_tokens=self.prompt_tokens, completion_tokens=self.completion_tokens)


def foretold(choice: Choice, features: Sequence[float]) -> dict[str, float]:
    """What each arm is foretold to be worth, within what is possible."""
    return {
        name: min(max(sum(weight * value for weight, value in zip(arm.weights, features, strict=True)), -choice.most_penalty), 1.0)
        for name, arm in choice.arms.items()
    }


def difference(draw: Draw, *, candidate: Choice, head: Choice) -> float:
    """d of one session, with the candidate's own weights as f and its terms for what a session was worth."""
    mine, served = candidate.chances(draw.features), head.chances(draw.features)
    worth = foretold(candidate, draw.features)
    moved = {name: mine.get(name, 0.0) - chance for name, chance in served.items()}
    expected = sum(change * worth[name] for name, change in moved.items())
    return moved[draw.arm] / served[draw.arm] * (draw.reward(candidate) - worth[draw.arm]) + expected


def bound(candidate: Choice, head: Choice) -> float:
    """The largest \\|d\\| that any features, rewards and f could give."""
    arms = list(head.arms)
    most = 0.0
    for best_head in arms:
        for best_candidate in arms:
            served = {name: head.explore / len(arms) + (1 - head.explore) * (name == best_head) for name in arms}
            mine = {name: candidate.explore / len(arms) + (1 - candidate.explore) * (name == best_candidate) for name in arms}
            for drawn in arms:
                moved = {name: mine[name] - served[name] for name in arms}
                weight = moved.pop(drawn) / served[drawn]
                parts = [weight, weight * (served[drawn] - 1.0), *moved.values()]  # of the reward, f of what was drawn, f of the others
                most = max(most, sum(part for part in parts if part > 0), -sum(part for part in parts if part < 0))
    return most * (1.0 + candidate.most_penalty)


def judge(draws: Sequence[Draw], *, candidate: Choice, head: Choice, alpha: float, spent: int, min_effect: float) -> Verdict:
    """Whether the candidate would have earned more, by sessions that it was not made from, in the order they were reported on.

    Raises:
        ValueError: the two have other arms, or there is no session.
    """
    if candidate.arms.keys() != head.arms.keys():
        raise ValueError("candidate and head must have the same arms")
    if not draws:
        raise ValueError("there is no session to judge by")
    scale = bound(candidate, head) or 1.0
    gate = Gate(Terms(alpha=alpha, spent=spent, min_effect=min(min_effect / scale, 0.99), max_pairs=len(draws)))
    found: list[float] = []
    for draw in draws:
        if gate.decision is not None:
            break
        one = difference(draw, candidate=candidate, head=head)
        found.append(0.0 if abs(one) < TIE else one)
        gate.observe(min(max(found[-1] / scale, -1.0), 1.0), task="session")
    gate.give_up(f"all {len(draws)} sessions were looked at")
    assert gate.decision is not None
    effect, (low, high) = gate.effect * scale, gate.interval
    low, high = max(low * scale, -1.0 - candidate.most_penalty), min(high * scale, 1.0 + candidate.most_penalty)
    needed = 1 / gate.terms.share
    terms: Mapping[str, Any] = {"format": FORMAT, **dataclasses.asdict(gate.terms), "bound": scale, "differences": found}
    return Verdict(
        gate.decision,
        f"By {len(found)} sessions of the head, weighted by the chance of their arm: evidence {gate.evidence:.3g}"
        f" where {needed:.0f} are needed; effect {effect:+.3f}, between {low:+.2f} and {high:+.2f}.",
        effect=effect,
        low=low,
        high=high,
        pairs=gate.pairs,
        wins=gate.wins,
        losses=gate.losses,
        evidence=gate.evidence,
        alpha=gate.terms.share,
        seconds=0.0,
        terms=terms,
    )
