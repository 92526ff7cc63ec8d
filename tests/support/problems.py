"""A problem that a model which knows nothing solves a little, by chance: for searches with a real engine."""

from __future__ import annotations

import re
from fractions import Fraction

from recipes.ttt_discover.problems import Problem, Refused, Verified

RESERVED = re.compile(r"<\|reserved_[0-9]+\|>")
"""What the tiny model says in six of ten tokens (:mod:`reef.serving.models.tiny_model`)."""


class Letters(Problem):
    """As many letters as possible, up to so many, in as many tokens as an answer may have."""

    name = "letters"

    def prompt(self, best: str) -> str:
        asked = "Write a long text, of letters alone."
        return f"{asked} A good one, to be improved: {best}" if best else asked

    def verify(self, answer: str) -> Verified:
        found = [letter for letter in RESERVED.sub("", answer) if letter.isascii() and letter.isalpha()][: self.size]
        if not found:
            raise Refused("there is no letter in the answer")
        return Verified(Fraction(len(found)), "".join(found))

    def score(self, value: Fraction) -> float:
        return float(value) / self.size
