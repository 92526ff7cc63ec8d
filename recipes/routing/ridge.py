"""Ridge regression for a handful of features: (XᵀX + λI) w = Xᵀy, by elimination. Pure; no array library for five unknowns."""

from __future__ import annotations

from collections.abc import Sequence


def fit(samples: Sequence[tuple[Sequence[float], float]], *, penalty: float, width: int, centre: float = 0.0) -> tuple[float, ...]:
    """The weights; the penalty pulls the first, the constant's, to ``centre`` and the others to 0.

    Args:
        samples: features, the first of which is 1, and what is to be foretold.
        penalty: λ > 0: as much as that many samples.
    """
    rows = [[penalty * (i == j) for j in range(width)] + [0.0] for i in range(width)]
    for features, value in samples:
        for i in range(width):
            for j in range(width):
                rows[i][j] += features[i] * features[j]
            rows[i][width] += features[i] * (value - centre)
    solved = _solve(rows)
    return (solved[0] + centre, *solved[1:])


def _solve(rows: list[list[float]]) -> list[float]:
    """Gauss-Jordan with the largest pivot; the matrix is positive definite, so there is one."""
    width = len(rows)
    for column in range(width):
        pivot = max(range(column, width), key=lambda row: abs(rows[row][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        head = rows[column][column]
        rows[column] = [value / head for value in rows[column]]
        for other in range(width):
            if other != column and rows[other][column]:
                factor = rows[other][column]
                rows[other] = [value - factor * mine for value, mine in zip(rows[other], rows[column], strict=True)]
    return [row[width] for row in rows]
