"""Graders: from the outcome of a run to a score in [0, 1]. :class:`~reef.evaluation.graders.text.ExactGrader` is the one to copy.

:mod:`~reef.evaluation.graders.contract` is what the author of one needs; the other modules are those that come with Reef. A workspace was
written by an agent, so nothing in it is trusted: files are read without following links, only where they are regular files, and only so
far, and nothing of it is run outside the sandbox.

**Whose fault a failure is.** A score says something about the agent, so only an outcome gets one: an answer that is missing or broken is 0.
A grader that is wrong whatever the agent did (a score that is no number from 0 to 1, an exception of its own, a bad option) raises
:class:`~reef.errors.ConfigError`, and nothing is decided until somebody mends it. One that could not do its work this time (its model
is down or talks nonsense, it ran out of time) raises :class:`~reef.errors.GraderFault`, which is a fault of the infrastructure: the
evaluator runs both sides of the pair again, and gives up undecided where that does not help. Never is either of them a 0: a head and a
candidate whose grader is broken would look equally bad, and the one that breaks it less often would look better.
"""

from reef.evaluation.graders.command import CommandGrader
from reef.evaluation.graders.contract import Completed, Grader, Model, Options, RunCommand, Score, WorkspacePath, explain
from reef.evaluation.graders.text import ExactGrader, RegexGrader

__all__ = [
    "CommandGrader",
    "Completed",
    "ExactGrader",
    "Grader",
    "Model",
    "Options",
    "RegexGrader",
    "RunCommand",
    "Score",
    "WorkspacePath",
    "explain",
]
