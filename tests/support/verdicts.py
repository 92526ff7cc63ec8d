"""Verdicts the gate reached on trials that were drawn instead of run."""

from __future__ import annotations

import random

from reef.evaluation.gate import Gate, Terms
from reef.evaluation.verdicts import Ending, conclude, take
from reef.types import Trial, TrialEnd, Verdict


def simulated(seed: int = 1, *, effect: float = 0.4, screened: bool = True, max_pairs: int = 80) -> Verdict:
    """With scores that have all their digits, so that nothing is equal by chance."""
    generator = random.Random(seed)
    gate = Gate(Terms(alpha=0.05, spent=seed, min_effect=0.1, max_pairs=max_pairs, screened=screened, protected={"tag a": ("a", "b")}))
    trials: list[Trial] = []
    while gate.decision is None and gate.all_pairs < max_pairs:
        number, task = gate.all_pairs, generator.choice("abc")
        pair = [trial(task, side, number, gate.stage.value, effect, generator) for side in ("head", "candidate")]
        take(gate, pair)
        trials += pair
    ending = Ending() if gate.decision else Ending("pairs", f"the budget of {max_pairs} pairs is used up")
    return conclude(gate, trials, ending=ending, seconds=generator.uniform(1, 100))


def trial(task: str, side: str, pair: int, stage: str, effect: float, generator: random.Random) -> Trial:
    """One that went well or not by chance."""
    lift = abs(effect) if (side == "candidate") == (effect > 0) else 0.0
    score = lift + generator.random() * (1 - lift)
    return Trial(
        task,
        side,
        pair,
        f"{side}-bytes",
        TrialEnd.SCORED,
        score,
        "drawn",
        f"trial:{pair}:{side}",
        generator.uniform(1, 9),
        stage=stage,
        setting=f"setting-{task}",
        tokens=generator.randrange(10_000),
        cost=generator.random() / 7,
    )
