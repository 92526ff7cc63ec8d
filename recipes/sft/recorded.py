"""Sessions that are demonstrations themselves: what another model answered, as the tokens of the model that learns.

The engine tells the tokens of what it answered; of what an upstream answered there are none. A report that says ``"demonstrates": true``
vouches for such a session, and its conversation is then shown by the chat template, turn by turn, as the engine would have read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from reef.errors import Unprocessable
from reef.experience import telling
from reef.learner.recipe import Workbench
from reef.training.batches import Rollout
from reef.training.prompts import ChatPrompts
from reef.types import JSON, Record, Report, TokenTrace

_ANSWERED = ("role", "content", "tool_calls")
"""What a template gets of an answer. Reasoning is no part of it: the templates of most models take it out of the turns before."""


def demonstrates(report: Report) -> bool:
    """Whether a report says that what it quotes is what should have been answered."""
    return any(isinstance(place, Mapping) and place.get("demonstrates") is True for place in (report.feedback, report.metadata))


def message(record: Record) -> dict[str, JSON] | None:
    """What was answered, as a message of a chat; None where it was another dialect, or nothing."""
    said = telling.answer(record) if record.dialect == "chat" else []
    if len(said) != 1 or not isinstance(said[0], dict):
        return None
    told = {name: said[0][name] for name in _ANSWERED if said[0].get(name)}
    return told if told.keys() - {"role"} else None


class Recorded:
    """Gives the records of demonstrating attempts their tokens; called with one attempt after the other.

    Args:
        parent: the step that is trained from. A demonstration is of no policy, and so never too old.

    Raises:
        ConfigError: the model has no chat template or tokenizer.
    """

    def __init__(self, bench: Workbench, *, parent: int) -> None:
        assert bench.ground is not None
        self._store, self._ground, self._parent = bench.store, bench.ground, parent
        self._prompts: ChatPrompts | None = None

    def __call__(self, attempt: Rollout) -> Rollout:
        if not demonstrates(self._store.report(attempt.name)):
            return attempt
        return replace(attempt, records=tuple(map(self._told, attempt.records)))

    def _told(self, record: Record) -> Record:
        """The record with tokens; as it is where it has some, or where the template does not take it."""
        answer = message(record)
        if record.tokens is not None or answer is None:
            return record
        self._prompts = self._prompts or self._ground.prompts()
        try:
            prompt = self._prompts.tokens(record.request)
            completion = self._prompts.answer(record.request, answer)
        except Unprocessable:
            return record
        trace = TokenTrace(prompt, completion, (0.0,) * len(completion))  # no policy generated it, and the loss looks at none
        return record._replace(tokens=trace, release=self._parent, candidate=None)
