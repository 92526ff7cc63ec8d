"""The classical way to pack circles, to stand beside a search: SLSQP from many starts. Needs scipy (the extra ``examples``).

Every fourth start is random; the others are the best packing so far with some circles moved, which finds better ones much sooner. What
comes out is made exact: radii are first shrunk until the certifier, which knows no tolerance, accepts the packing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from recipes.ttt_discover.problems.circle_packing import Circle, certify, exact
from recipes.ttt_discover.problems.contract import Refused
from reef.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

_ITERATIONS = 300
_SHRINK = (0.0, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6)


@dataclass(frozen=True, slots=True)
class Found:
    """A certified packing."""

    value: Fraction
    circles: tuple[Circle, ...]
    starts: int
    """How many starts it took."""
    seconds: float


def improvements(size: int, *, seconds: float, seed: int = 0, most_starts: int = 100_000) -> Iterator[Found]:
    """Better and better packings, until the time is up. A start under way is finished, so it ends some seconds later.

    Raises:
        ConfigError: scipy is not installed.
    """
    try:
        import numpy as np
        import scipy.optimize
    except ImportError:
        raise ConfigError("the classical baseline needs scipy", hint="pip install 'reef[examples]'") from None
    dice = np.random.default_rng(seed)
    began = time.monotonic()
    best = Fraction(0)
    kept: np.ndarray | None = None
    terms = _Terms(np, size)
    for start in range(1, most_starts + 1):
        if kept is None or start % 4 == 1:
            first = np.column_stack([dice.uniform(0.05, 0.95, (size, 2)), np.full(size, 0.02)])
        else:
            first = kept + dice.normal(0.0, 0.02, (size, 3)) * [1.0, 1.0, 0.0]
            moved = dice.choice(size, min(size, int(dice.integers(1, 4))), replace=False)
            first[moved] = np.column_stack([dice.uniform(0.05, 0.95, (len(moved), 2)), np.full(len(moved), 0.02)])
            first = np.clip(first, [0.0, 0.0, 1e-4], [1.0, 1.0, 0.5])
        found = scipy.optimize.minimize(
            terms.loss,
            first.ravel(),
            jac=terms.loss_slope,
            method="SLSQP",
            bounds=[(0.0, 1.0), (0.0, 1.0), (1e-4, 0.5)] * size,
            constraints=[{"type": "ineq", "fun": terms.room, "jac": terms.room_slope}],
            options={"maxiter": _ITERATIONS, "ftol": 1e-12},
        )
        packing = _certified(found.x.reshape(size, 3), size=size)
        if packing is not None and packing[0] > best:
            best, kept = packing[0], found.x.reshape(size, 3)
            yield Found(best, packing[1], start, time.monotonic() - began)
        if time.monotonic() - began >= seconds:
            return


class _Terms:
    """Loss and constraints with their slopes, for circles as (3n,)."""

    def __init__(self, np: Any, size: int) -> None:
        self._np = np
        self._size = size
        self._one, self._two = np.triu_indices(size, 1)
        self._slope = np.zeros(3 * size)
        self._slope[2::3] = -1.0
        self._walls = np.zeros((4 * size, 3 * size))
        for circle in range(size):
            for side, (axis, sign) in enumerate(((0, 1.0), (0, -1.0), (1, 1.0), (1, -1.0))):
                self._walls[4 * circle + side, 3 * circle + axis] = sign
                self._walls[4 * circle + side, 3 * circle + 2] = -1.0

    def loss(self, flat: np.ndarray) -> float:
        return -float(flat[2::3].sum())

    def loss_slope(self, _flat: np.ndarray) -> np.ndarray:
        return self._slope

    def room(self, flat: np.ndarray) -> np.ndarray:
        """What is left to the walls, and between any two circles: at least 0 where it is a packing."""
        x, y, r = flat[0::3], flat[1::3], flat[2::3]
        walls = self._np.column_stack([x - r, 1 - x - r, y - r, 1 - y - r]).ravel()
        i, j = self._one, self._two
        return self._np.concatenate([walls, (x[i] - x[j]) ** 2 + (y[i] - y[j]) ** 2 - (r[i] + r[j]) ** 2])

    def room_slope(self, flat: np.ndarray) -> np.ndarray:
        x, y, r = flat[0::3], flat[1::3], flat[2::3]
        i, j = self._one, self._two
        rows = self._np.arange(len(i))
        slope = self._np.zeros((len(i), 3 * self._size))
        slope[rows, 3 * i], slope[rows, 3 * j] = 2 * (x[i] - x[j]), -2 * (x[i] - x[j])
        slope[rows, 3 * i + 1], slope[rows, 3 * j + 1] = 2 * (y[i] - y[j]), -2 * (y[i] - y[j])
        slope[rows, 3 * i + 2] = slope[rows, 3 * j + 2] = -2 * (r[i] + r[j])
        return self._np.vstack([self._walls, slope])


def _certified(rows: np.ndarray, *, size: int) -> tuple[Fraction, tuple[Circle, ...]] | None:
    """The packing with radii as little smaller as makes it one; None where the optimiser did not come to one."""
    for less in _SHRINK:
        circles = exact([[float(x), float(y), float(r) - less] for x, y, r in rows])
        try:
            return certify(circles, size=size), tuple(circles)
        except Refused:
            continue
    return None
