"""A text in pieces: of one that begins as another did, only what comes after is new memory."""

from __future__ import annotations

MOST_PIECES = 64
"""Beyond it they become one again."""


class Rope:
    """A text that does not change.

    Args:
        pieces: of the text, in their order; none is empty.
    """

    __slots__ = ("_pieces", "size")

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces if len(pieces) <= MOST_PIECES else [b"".join(pieces)]
        self.size = sum(map(len, pieces))

    def begun(self, shared: int, rest: bytes) -> Rope:
        """Another text: the first ``shared`` bytes of this one, and then the rest."""
        pieces: list[bytes] = []
        left = shared
        for piece in self._pieces:
            if left <= len(piece):
                pieces += (piece[:left], rest)
                break
            pieces.append(piece)
            left -= len(piece)
        return Rope(pieces)

    def behind(self, start: int) -> bytes:
        """From one place on; cheap near the end."""
        found: list[bytes] = []
        left = self.size - start
        for piece in reversed(self._pieces):
            if left <= len(piece):
                found.append(piece[len(piece) - left :])
                break
            found.append(piece)
            left -= len(piece)
        return b"".join(reversed(found))

    def whole(self) -> bytes:
        """All of it."""
        return b"".join(self._pieces)
