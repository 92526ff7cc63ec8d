"""What a teacher reads: the prompt of a sample with something added that the student was not told."""

from __future__ import annotations

from collections import Counter

from reef.errors import Unprocessable
from reef.learner.recipe import Workbench
from reef.training.prompts import with_note
from reef.training.sample import InvalidSample, Sample, Teacher


class Teaching:
    """Makes teachers of one batch's samples.

    The note is put into the messages of the sample's first request, which are rendered and tokenised for it; what was generated stays as it
    was, token by token. Where the rendering without the note is not what the engine read, the teacher would read another conversation than
    the student: such a sample is left out and counted.

    Raises:
        ConfigError: the model has no chat template or tokenizer.
    """

    def __init__(self, bench: Workbench) -> None:
        assert bench.ground is not None
        self._store = bench.store
        self._prompts = bench.ground.prompts()
        self.left_out: Counter[str] = Counter()
        """Samples that got no teacher, by reason."""

    def with_note(self, sample: Sample, note: str) -> Sample | None:
        """The sample with a teacher who is told ``note``; None where there can be none."""
        record = self._store.record(sample.records[0])
        if record.tokens is None or record.dialect != "chat":
            self.left_out["no_tokens"] += 1
            return None
        try:
            if self._prompts.tokens(record.request) != record.tokens.prompt_ids:
                self.left_out["other_template"] += 1
                return None
            prompt = self._prompts.tokens(record.request, messages=with_note(record.request["messages"], note))
            return sample.replace(teacher=Teacher.with_prompt(prompt, sample_tokens=sample.tokens, mask=sample.mask))
        except InvalidSample as error:
            self.left_out[error.reason] += 1
        except Unprocessable:
            self.left_out["refused_by_template"] += 1
        return None


def same_context(sample: Sample) -> Sample:
    """The sample with a teacher who reads what the student read: it is another model."""
    positions = tuple(place for place, generated in enumerate(sample.mask) if generated)
    return sample.replace(teacher=Teacher(sample.tokens, positions))
