"""Reef: an inference gateway that learns from what its agents did and how it went.

Rooms, lowest floor first (an import may only go down; `make lint` keeps it):
``types errors`` → ``config plugins experience artifacts`` → ``harness serving`` → ``evaluation`` → ``releases`` →
``learner gateway rehearsal`` → ``supervisor`` → ``cli``. Nothing here imports a plugin.
"""

__version__ = "0.1.0"
