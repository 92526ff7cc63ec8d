"""The losses once more: plain Python floats and loops, as the formulas stand in the papers. Slow, and easy to compare with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Row = Sequence[float]


def over_generated(mask: Sequence[bool], term: Callable[[int], float]) -> float:
    """mean_t of ``term(t)``."""
    places = [t for t, generated in enumerate(mask) if generated]
    return sum(term(t) for t in places) / len(places)


def trusted(ratio: float, *, low: float, high: float) -> float:
    return ratio if 1 - low < ratio < 1 + high else 0.0


def sao(logprobs: Row, old: Row, mask: Sequence[bool], advantages: Row, *, low: float, high: float) -> float:
    def term(t: int) -> float:
        return -trusted(math.exp(logprobs[t] - old[t]), low=low, high=high) * advantages[t] * logprobs[t]

    return over_generated(mask, term)


def clip(ratio: float, advantage: float, *, low: float, high: float) -> float:
    return -min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)


def ppo(logprobs: Row, old: Row, mask: Sequence[bool], advantages: Row, *, low: float, high: float) -> float:
    return over_generated(mask, lambda t: clip(math.exp(logprobs[t] - old[t]), advantages[t], low=low, high=high))


def kl_to_base(logprobs: Row, base: Row, mask: Sequence[bool]) -> float:
    return over_generated(mask, lambda t: math.exp(base[t] - logprobs[t]) - (base[t] - logprobs[t]) - 1)


def discover(logprobs: Row, old: Row, mask: Sequence[bool], advantages: Row) -> float:
    return -sum(math.exp(logprobs[t] - old[t]) * advantages[t] for t in range(len(mask)) if mask[t])


def softmax(logits: Row) -> list[float]:
    most = max(logits)
    weights = [math.exp(value - most) for value in logits]
    return [weight / sum(weights) for weight in weights]


def divergence_from_uniform(beta: float, rewards: Row) -> float:
    return sum(p * math.log(p * len(rewards)) for p in softmax([beta * reward for reward in rewards]) if p > 0)


def leave_one_out(beta: float, rewards: Row) -> list[float]:
    most = max(rewards)
    weights = [math.exp(beta * (reward - most)) for reward in rewards]
    return [w / (sum(o for j, o in enumerate(weights) if j != i) / (len(weights) - 1)) - 1 for i, w in enumerate(weights)]


def gae(values: Row, mask: Sequence[bool], *, reward: float, gamma: float, lam: float) -> list[float]:
    """By the definition: A_i = Σ_k (γλ)^k δ_{i+k} over the generated tokens."""
    own = [value for value, generated in zip(values, mask, strict=True) if generated]
    deltas = []
    for i, value in enumerate(own):
        last = i == len(own) - 1
        deltas.append((reward if last else 0.0) + (0.0 if last else gamma * own[i + 1]) - value)
    found = iter([sum((gamma * lam) ** (k - i) * deltas[k] for k in range(i, len(own))) for i in range(len(own))])
    return [next(found) if generated else 0.0 for generated in mask]


def kl(p: Row, q: Row) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def divergence(student: Row, teacher: Row, *, kind: str, beta: float) -> float:
    """Of two distributions, given as probabilities."""
    if kind == "forward_kl":
        return kl(teacher, student)
    if kind == "reverse_kl":
        return kl(student, teacher)
    middle = [beta * t + (1 - beta) * s for s, t in zip(student, teacher, strict=True)]
    return beta * kl(teacher, middle) + (1 - beta) * kl(student, middle)


def bucketed(p: Row, ids: Sequence[int]) -> list[float]:
    rest = [value for token, value in enumerate(p) if token not in ids]
    return [p[token] for token in ids] + ([sum(rest)] if rest else [])


def likeliest(p: Row, k: int) -> list[int]:
    return sorted(range(len(p)), key=lambda token: -p[token])[:k]


def importance(logprobs: Row, old: Row, mask: Sequence[bool], *, cap: float | None, by: str) -> list[float]:
    ratios = [math.exp(new - was) if generated else 1.0 for new, was, generated in zip(logprobs, old, mask, strict=True)]
    if by == "sequence":
        ratios = [math.prod(ratios)] * len(ratios)
    return [ratio if cap is None else min(ratio, cap) for ratio in ratios]


def hint(student: Sequence[Row], old: Sequence[Row], teacher: Sequence[Row], mask: Sequence[bool], *, low: float, high: float) -> float:
    """Rows of log-probabilities of the K tokens, position by position."""

    def term(t: int) -> float:
        weights = softmax(old[t])
        total = 0.0
        for v, was in enumerate(old[t]):
            advantage = max(-1.0, min(1.0, teacher[t][v] - was)) * weights[v]
            total += clip(math.exp(student[t][v] - was), advantage, low=low, high=high)
        return total

    return over_generated(mask, term)
