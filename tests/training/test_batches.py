"""Batches of records: every generated token that may train does so once, in its own context; everything else is counted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.training.batches import Rollout, Terms, assemble, make, served_release
from reef.training.batches_merge import merge
from reef.types import End, Origin, Record, TokenTrace

TERMS = Terms(parent=10, max_staleness=3)


def record(name: str, prompt: Sequence[int], completion: Sequence[int] = (7, 8), **more: Any) -> Record:
    values: dict[str, Any] = {
        "scenario": "s",
        "session": "run",
        "release": 10,
        "origin": Origin.USER,
        "dialect": "chat",
        "upstream": "u",
        "model": "m",
        "end": End.COMPLETE,
        "status": 200,
        "streamed": False,
        "request": {},
        "response": {"model": "m"},
        "usage": {},
        "started_at": 0.0,
        "first_byte_ms": None,
        "duration_ms": 1.0,
        "tokens": TokenTrace(tuple(prompt), tuple(completion), tuple(-0.25 * (1 + place) for place in range(len(completion)))),
    }
    return Record(id=name, **{**values, **more})


def attempt(name: str, *records: Record, reward: float | None = 1.0, group: str = "") -> Rollout:
    return Rollout(name=name, records=records, reward=reward, group=group, reports=(f"report-{name}",))


def chain(name: str, *, turns: int = 2, start: int = 0, **more: Any) -> tuple[Record, ...]:
    """A run of which each prompt extends the one before, with two tokens of a tool in between."""
    prompt, found = [100 + start, 101], []
    for turn in range(turns):
        found.append(record(f"{name}-{turn}", prompt, (7, 8), **more))
        prompt = [*prompt, 7, 8, 200, 201]
    return tuple(found)


@st.composite
def sessions(draw: st.DrawFn) -> list[Record]:
    """Records that extend one before, fork from it, cut it short, repeat it or begin anew; few different tokens, so that much coincides."""
    token, found = st.integers(0, 2), list[Record]()
    for number in range(draw(st.integers(1, 10))):
        base: tuple[int, ...] = ()
        if found and draw(st.booleans()):
            trace = draw(st.sampled_from(found)).tokens
            assert trace is not None
            whole = trace.prompt_ids + trace.completion_ids
            base = draw(st.sampled_from([whole, trace.prompt_ids, whole[:-1]]))
        prompt = (*base, *draw(st.lists(token, min_size=0 if base else 1, max_size=3)))
        completion = tuple(draw(st.lists(token, min_size=1, max_size=3)))
        tokens = TokenTrace(prompt, completion, tuple(-(number + 1) - 0.01 * place for place in range(len(completion))))
        found.append(record(f"r{number}", (1,), tokens=tokens))
    return found


@given(sessions(), st.booleans())
def test_every_generated_token_trains_once_behind_the_prompt_that_led_to_it(records: list[Record], together: bool) -> None:
    made = make(attempt("a", *records), terms=replace(TERMS, together=together))
    assert not made.skipped
    assert Counter(name for sample in made.samples for name in sample.records) == Counter(each.id for each in records)
    by_id = {each.id: each.tokens for each in records}
    for strand in merge(records, together=together):
        for turn in strand.turns:
            trace = by_id[turn.record.id]
            assert trace is not None
            assert strand.tokens[: turn.start] == trace.prompt_ids
            assert strand.tokens[turn.start : turn.stop] == trace.completion_ids
    trained = sorted(value for sample in made.samples for value, kept in zip(sample.old_logprobs, sample.mask, strict=True) if kept)
    assert trained == sorted(value for trace in by_id.values() if trace for value in trace.logprobs)
    assert sum(sample.generated for sample in made.samples) == sum(len(trace.completion_ids) for trace in by_id.values() if trace)


@given(sessions(), st.data())
def test_a_session_that_only_goes_on_is_one_sequence(records: list[Record], data: st.DataObject) -> None:
    grown, found = (1,), []
    for each in records:
        assert each.tokens is not None
        trace = TokenTrace(grown, each.tokens.completion_ids, each.tokens.logprobs)
        found.append(each._replace(tokens=trace))
        grown = (*grown, *trace.completion_ids, *data.draw(st.lists(st.integers(0, 2), max_size=2)))
    (strand,) = merge(found)
    assert len(strand.turns) == len(records)


def test_turns_that_extend_each_other_are_one_sample_with_the_tools_words_masked() -> None:
    (sample,) = make(attempt("a", *chain("a", turns=3)), terms=TERMS).samples
    assert sample.tokens == (100, 101, 7, 8, 200, 201, 7, 8, 200, 201, 7, 8)
    assert sample.mask == (False, False, True, True) * 3
    assert sample.old_logprobs == (0.0, 0.0, -0.25, -0.5) * 3
    assert sample.releases == (None, None, 10, 10) * 3
    assert sample.records == ("a-0", "a-1", "a-2")
    assert (sample.reward, sample.rollout, sample.session) == (1.0, "a", "run")


def test_a_fork_is_split_and_its_common_beginning_trains_once() -> None:
    first, second = chain("a")
    fork = record("fork", [100, 101, 7, 8, 300], (9,))
    one, other = make(attempt("a", first, second, fork), terms=TERMS).samples
    assert one.records == ("a-0", "a-1")
    assert other.records == ("fork",)
    assert other.mask == (False,) * 5 + (True,)


def test_a_retry_and_a_history_that_was_cut_train_apart() -> None:
    first, second = chain("a")
    retry, cut = record("retry", [100, 101], (5,)), record("cut", [100, 200, 201])
    after_retry = record("after", [100, 101, 5, 6], (4,))
    samples = make(attempt("a", first, retry, second, cut, after_retry), terms=TERMS).samples
    assert [sample.records for sample in samples] == [("a-0", "a-1"), ("retry", "after"), ("cut",)]


def test_only_whole_finite_token_exact_records_train_and_each_reason_is_counted() -> None:
    good = record("good", [1, 2])
    broken = [good._replace(id=f"end-{end}", end=end) for end in End if end is not End.COMPLETE]
    broken += [
        good._replace(id="none", tokens=None),
        record("empty", [1, 2], ()),
        record("no prompt", []),
        good._replace(id="short", tokens=TokenTrace((1,), (7, 8), (-0.1,))),
        good._replace(id="nan", tokens=TokenTrace((1,), (7,), (math.nan,))),
        good._replace(id="impossible", tokens=TokenTrace((1,), (7,), (-3e38,))),
        good._replace(id="positive", tokens=TokenTrace((1,), (7,), (0.5,))),
        record("long", range(100)),
        record("used before", [1, 2]),
        record("canary", [1, 2], release=None, candidate="c-0123456789ab"),
        record("trial", [1, 2], response={"model": "s.c-0123456789ab"}),
        good,
    ]
    terms = replace(TERMS, max_tokens=50, consumed={"used before"})
    made = make(attempt("a", good, *broken), terms=terms)
    assert [sample.records for sample in made.samples] == [("good",)]
    assert made.skipped == {
        **{f"end_{end.value}": 1 for end in End if end is not End.COMPLETE},
        **{"no_tokens": 1, "empty_mask": 1, "invalid": 2, "not_finite": 3, "too_long": 1, "consumed": 1, "candidate": 2, "duplicate": 1},
    }
    rounded = make(attempt("a", good._replace(tokens=TokenTrace((1,), (7,), (1e-7,)))), terms=terms)
    assert rounded.samples[0].old_logprobs == (0.0, 0.0)
    assert make(attempt("a", good, reward=math.nan), terms=terms).skipped == {"not_finite": 1}


def test_an_exchange_that_was_cut_off_is_context_for_the_next() -> None:
    first, second, third = chain("a", turns=3)
    (sample,) = make(attempt("a", first, second._replace(end=End.TRUNCATED), third), terms=TERMS).samples
    assert sample.records == ("a-0", "a-2")
    assert sample.mask == (False, False, True, True, False, False, False, False, False, False, True, True)


def test_a_record_is_of_the_release_that_the_engine_names() -> None:
    said = record("a", [1])
    assert served_release(said) == 10, "the client's word, where the engine names no release"
    assert served_release(said._replace(response={"model": "s.4"})) == 4
    assert served_release(said._replace(response=None, model="s.5")) == 5
    assert served_release(said._replace(response={"model": "s.4"}, model="s.5")) == 4
    assert served_release(said._replace(response={"model": "other.4"})) == 10
    assert served_release(said._replace(response={"model": "s.c-0123456789ab"})) is None, "a candidate is no release"
    assert served_release(said._replace(release=None, candidate="c-0123456789ab")) is None
    assert served_release(said._replace(release=None, candidate="c-0123456789ab", response={"model": "s.9"})) == 9, "of the harness alone"
    assert served_release(said._replace(scenario="a.b", response={"model": "a.b.12"})) == 12
    assert served_release(said._replace(release=None)) is None


def test_where_a_swap_fell_into_an_answer_each_token_is_of_what_made_it() -> None:
    plain = record("a", [1, 2], (7, 8, 9), release=7, response={"model": "s.9"})
    assert plain.tokens is not None

    def swapped(*served: str, starts: tuple[int, ...] = (0, 2), **more: Any) -> Record:
        return plain._replace(tokens=replace(plain.tokens, served=served, starts=starts[: len(served)]), **more)

    made = make(attempt("a", swapped("s.9", "s.10")), terms=TERMS)
    assert made.samples[0].releases == (None, None, 9, 9, 10)
    assert made.samples[0].old_logprobs == (0.0, 0.0, -0.25, -0.5, -0.75), "each token's policy is the one that made it"
    assert made.lags == {1: 1}, "of the older"
    assert served_release(swapped("s.9", "s.10")) == 9
    assert make(attempt("a", swapped("s.10")), terms=TERMS).samples[0].releases == (None, None, 10, 10, 10), "whatever the answer names"
    for served, reason in (
        (("s.6", "s.7"), "stale"),
        (("s.10", "s.11"), "ahead"),
        (("s.9", "other.2"), "unknown_release"),
        (("s.9", "s.c-0123456789ab"), "candidate"),
    ):
        assert make(attempt("a", swapped(*served)), terms=TERMS).skipped == {reason: 1}
    young = replace(TERMS, parent=3)
    begun = make(attempt("a", swapped("tiny", "s.2", release=1)), terms=young)
    assert begun.samples[0].releases == (None, None, 1, 1, 2), "the client's word, for what it was said of"
    back = make(attempt("a", swapped("s.2", "tiny", release=1)), terms=young)
    assert back.samples[0].releases == (None, None, 2, 2, None)
    assert back.lags == {-1: 1}


def test_staleness_is_of_each_record_and_a_session_may_span_releases() -> None:
    first, second, third, fourth = (
        each._replace(response={"model": f"s.{step}"}) for each, step in zip(chain("a", turns=4), (6, 7, 10, 11), strict=True)
    )
    batch = assemble([attempt("a", first, second, third, fourth)], terms=TERMS, size=1)
    (sample,) = batch.samples
    assert batch.skipped == {"stale": 1, "ahead": 1}
    assert batch.lags == {3: 1, 0: 1}
    assert sample.records == ("a-1", "a-2")
    assert sample.releases == (None,) * 6 + (7, 7, None, None, 10, 10)
    assert batch.used_share == 0.5
    nobody = first._replace(release=None, response={})
    assert assemble([attempt("b", nobody)], terms=TERMS, size=1).skipped == {"unknown_release": 1}
    young = assemble([attempt("b", nobody)], terms=replace(TERMS, parent=4), size=1)
    assert young.lags == {-1: 1}, "the first release is within reach, so any is"


def test_a_batch_is_topped_up_in_place_of_attempts_that_cannot_train() -> None:
    fresh = [attempt(name, *chain(name)) for name in "abc"]
    stale = attempt("old", *chain("old", release=1))
    newer = attempt("new", *chain("new", release=11))
    batch = assemble([stale, fresh[0], newer, fresh[1], fresh[2]], terms=TERMS, size=2)
    assert batch.rollouts == 2
    assert batch.records == ("a-0", "a-1", "b-0", "b-1")
    assert batch.reports == ("report-a", "report-b")
    assert batch.passed_over == ("report-old",), "what may train later is kept for it"
    assert batch.skipped == {"stale": 2, "ahead": 2}


def test_a_record_trains_for_one_judgement_of_a_batch() -> None:
    records = chain("a")
    batch = assemble([attempt("one", *records), attempt("two", *records), attempt("three", *chain("b"))], terms=TERMS, size=5)
    assert batch.records == ("a-0", "a-1", "b-0", "b-1")
    assert batch.skipped == {"duplicate": 2}
    assert batch.passed_over == ()


def test_attempts_of_a_group_that_is_in_the_batch_come_with_it() -> None:
    groups = [("a", "x"), ("b", "y"), ("c", "x"), ("d", "z"), ("e", "y")]
    rollouts = [attempt(name, *chain(name), group=group) for name, group in groups]
    batch = assemble(rollouts, terms=TERMS, size=2)
    assert [sample.rollout for sample in batch.samples] == ["a", "b", "c", "e"]
    assert batch.skipped == {"not_needed": 2}
    assert batch.used_share == 1.0


def test_a_full_batch_asks_for_no_more_attempts() -> None:
    def endless() -> Any:
        for number in range(3):
            assert number < 2, "asked for one too many"
            yield attempt(f"r{number}", *chain(f"r{number}"))

    assert assemble(endless(), terms=TERMS, size=2).rollouts == 2


def test_turns_can_train_apart() -> None:
    samples = make(attempt("a", *chain("a", turns=3)), terms=replace(TERMS, together=False)).samples
    assert [sample.records for sample in samples] == [("a-0",), ("a-1",), ("a-2",)]
    assert [sample.generated for sample in samples] == [2, 2, 2]


@pytest.mark.parametrize("size", [1, 3])
def test_no_experience_is_an_empty_batch(size: int) -> None:
    batch = assemble([], terms=TERMS, size=size)
    assert (batch.samples, batch.rollouts, batch.used_share) == ((), 0, 0.0)
