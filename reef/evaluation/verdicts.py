"""From pairs to a verdict, and the same again from what was stored: nothing in a verdict has to be believed.

The evaluator and :func:`recompute` go one way: :func:`take` feeds a pair's trials to the gate, :func:`conclude` writes down where it came
to. What only the clock and the infrastructure could know, why judging was given up and how long it took, is kept in ``terms`` and
``seconds`` and taken from there.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from reef.errors import InvalidRequest
from reef.evaluation.gate import Gate, Stage, terms_from
from reef.evaluation.guards import Price
from reef.evaluation.spending import smallest_effect
from reef.types import JSON, Decision, Trial, TrialEnd, Verdict

UNUSED = "unused"
"""The stage of trials that were under way when the gate had decided. They count as cost and for nothing else."""
FORMAT = 1
"""Of ``terms``."""
_CHANGED = "It was changed after it was stored, or made by another version of the gate."


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """Why judging ended without the gate's decision."""

    by: str = ""
    """``pairs``, ``tokens``, ``cost``, ``seconds``, ``infrastructure``, or empty where the gate decided."""
    why: str = ""


def take(gate: Gate, trials: Sequence[Trial]) -> None:
    """Give the gate a pair: the two trials of its last attempt, neither ended by the infrastructure."""
    head, candidate = (next(trial for trial in trials if trial.side == side) for side in ("head", "candidate"))
    fresh = not head.cached and not candidate.cached
    own = {trial.side: (trial.cost - trial.grading_cost, float(trial.tokens - trial.grading_tokens)) for trial in (head, candidate)}
    by = 0 if head.cost > 0 or candidate.cost > 0 else 1  # in money, or without prices in tokens
    cost = Price(own["candidate"][by], own["head"][by])
    gate.observe(
        candidate.score - head.score,
        task=candidate.task,
        cost=cost if fresh else None,
        latency=Price(candidate.duration_s, head.duration_s) if fresh else None,
    )


def conclude(gate: Gate, trials: Sequence[Trial], *, ending: Ending, seconds: float) -> Verdict:
    """The verdict, whether the gate decided or gave up."""
    gate.give_up(ending.why)
    assert gate.decision is not None
    low, high = gate.interval
    terms: dict[str, JSON] = {
        "format": FORMAT,
        **dataclasses.asdict(gate.terms),
        "protected": {name: list(tasks) for name, tasks in gate.terms.protected.items()},
        "ended_by": ending.by,
        "ended_why": ending.why,
    }
    if not gate.terms.measure:
        del terms["measure"]  # verdicts from before there was anything else do not have it, and are computed again all the same
    return Verdict(
        decision=gate.decision,
        reason=gate.reason,
        effect=gate.effect,
        low=low,
        high=high,
        pairs=gate.pairs,
        wins=gate.wins,
        losses=gate.losses,
        evidence=gate.evidence,
        alpha=gate.terms.share,
        seconds=seconds,
        trials=tuple(trials),
        smallest_effect=_smallest_effect(gate, ending),
        tokens=sum(trial.tokens for trial in trials),
        cost=math.fsum(trial.cost for trial in trials),
        terms=terms,
    )


def recompute(stored: Verdict) -> Verdict:
    """The verdict that the stored terms and trials lead to.

    Raises:
        InvalidRequest: it was stored without terms, or in a later form.
    """
    if stored.terms.get("format") != FORMAT:
        raise InvalidRequest(
            "the verdict cannot be computed again: it was not made by this gate",
            hint="Verdicts of other judges hold no terms; those of later versions need such a version.",
        )
    if stored.decision is Decision.NO_CHANGE:
        return no_change()
    gate = Gate(terms_from(stored.terms))
    used = (trial for trial in stored.trials if trial.stage != UNUSED)
    for _, group in itertools.groupby(used, key=lambda trial: trial.pair):
        trials = list(group)
        attempt = max(trial.attempt for trial in trials)
        last = [trial for trial in trials if trial.attempt == attempt]
        if gate.decision is not None:
            raise InvalidRequest(f"the verdict holds trials after its end: pair {last[0].pair}", hint=_CHANGED)
        if any(trial.end is TrialEnd.INFRASTRUCTURE_FAULT for trial in last):
            continue
        if {trial.side for trial in last} != {"head", "candidate"} or last[0].stage != gate.stage:
            raise InvalidRequest(f"the trials of pair {last[0].pair} do not fit together", hint=_CHANGED)
        take(gate, last)
    if gate.decision is None and not stored.terms["ended_by"]:
        raise InvalidRequest("the stored trials do not lead to a decision", hint=_CHANGED)
    ending = Ending(str(stored.terms["ended_by"]), str(stored.terms["ended_why"]))
    return conclude(gate, stored.trials, ending=ending, seconds=stored.seconds)


def first_difference(stored: Verdict, computed: Verdict) -> str:
    """The first field in which two verdicts are not the same to the last bit, with both values; empty where there is none."""
    for field in dataclasses.fields(Verdict):
        was, now = getattr(stored, field.name), getattr(computed, field.name)
        if was != now:
            return f"{field.name}: stored {was!r}, computed {now!r}"
    return ""


def verdict_from(fields: Mapping[str, Any]) -> Verdict:
    """A verdict out of its JSON."""
    trials = tuple(Trial(**{**trial, "end": TrialEnd(trial["end"])}) for trial in fields["trials"])
    return Verdict(**{**fields, "decision": Decision(fields["decision"]), "trials": trials})


def no_change() -> Verdict:
    """For a candidate whose bytes are the head's. Nothing is tried, and none of the chain's error is spent."""
    return Verdict(
        Decision.NO_CHANGE,
        "No change: the candidate's bytes are the head's.",
        effect=0.0,
        low=0.0,
        high=0.0,
        pairs=0,
        wins=0,
        losses=0,
        evidence=1.0,
        alpha=0.0,
        seconds=0.0,
        terms={"format": FORMAT},
    )


def undecided(reason: str) -> Verdict:
    """For a candidate that could not be tried at all, for a reason that says nothing about it."""
    return Verdict(
        Decision.INCONCLUSIVE, reason, effect=0.0, low=-1.0, high=1.0, pairs=0, wins=0, losses=0, evidence=1.0, alpha=0.0, seconds=0.0
    )


def _smallest_effect(gate: Gate, ending: Ending) -> float | None:
    """What the budget could have seen, with pairs as unequal as those that were run."""
    done = gate.pairs if gate.shown is Stage.CONFIRM else 0
    planned = gate.terms.max_pairs - gate.all_pairs + done  # what the screen took is gone
    pairs = planned if ending.by in {"", "pairs"} else done
    unequal = [difference for difference in gate.differences if difference]
    size = math.sqrt(math.fsum(difference * difference for difference in unequal) / len(unequal)) if unequal else 1.0
    return smallest_effect(gate.terms.share, pairs=pairs, unequal=(len(unequal) + 1) / (gate.pairs + 2), size=size)
