"""Advantages equal a plain reference; what carries no signal is counted and never trained."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import loss_reference as reference

torch = pytest.importorskip("torch")

from reef.training import losses  # noqa: E402
from reef.training.losses import advantages  # noqa: E402
from reef.training.losses.divergence import log_probabilities  # noqa: E402
from reef.training.losses.ttt_discover import REACH, TARGET, entropic_advantages, solve_beta  # noqa: E402
from reef.training.sample import InvalidSample, Sample, Teacher  # noqa: E402

LN2 = math.log(2.0)
numbers = st.floats(-5.0, 5.0)


def sample(reward: float | None = 1.0, *, group: str = "", mask: tuple[bool, ...] = (False, True, False, True), **more: Any) -> Sample:
    old = tuple(-0.5 if generated else 0.0 for generated in mask)
    return Sample(
        tokens=tuple(range(len(mask))), mask=mask, old_logprobs=old, releases=(None,) * len(mask), reward=reward, group=group, **more
    )


def many(rewards: list[Any]) -> Any:
    return torch.tensor(rewards, dtype=torch.float64)


@given(st.lists(st.tuples(numbers, st.booleans()), min_size=1, max_size=12), numbers, st.floats(0, 1), st.floats(0, 1))
def test_gae_equals_its_definition_over_the_generated_tokens(
    steps: list[tuple[float, bool]], reward: float, gamma: float, lam: float
) -> None:
    values, mask = [value for value, _ in steps], [generated for _, generated in steps]
    found = advantages.gae(many(values), torch.tensor(mask), reward=reward, gamma=gamma, lam=lam).tolist()
    assert found == pytest.approx(reference.gae(values, mask, reward=reward, gamma=gamma, lam=lam), abs=1e-9)


def test_the_actors_lambda_grows_with_the_length() -> None:
    assert advantages.actor_lambda(1) == pytest.approx(1 / 3)
    assert advantages.actor_lambda(1000) == pytest.approx(1 - 1 / 1500)


@given(st.lists(numbers, min_size=2, max_size=9))
def test_group_advantages_are_centred_and_of_unit_deviation(rewards: list[float]) -> None:
    found = advantages.group_advantages(many(rewards)).tolist()
    if max(rewards) == min(rewards):
        assert found == [0.0] * len(rewards)
    elif max(rewards) - min(rewards) > 1e-6:
        mean = math.fsum(rewards) / len(rewards)
        deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))
        assert found == pytest.approx([(reward - mean) / deviation for reward in rewards], abs=1e-6)


@given(st.lists(st.floats(-1e6, 1e6).map(lambda x: round(x, 3)), min_size=2, max_size=10))
def test_beta_reaches_the_target_as_far_as_it_can_be_reached(rewards: list[float]) -> None:
    beta = solve_beta(many(rewards))
    if max(rewards) == min(rewards):
        assert beta == 0.0
        return
    most = math.log(len(rewards) / rewards.count(max(rewards)))
    assert reference.divergence_from_uniform(beta, rewards) == pytest.approx(min(LN2, REACH * most), abs=1e-6)
    assert entropic_advantages(many(rewards)).tolist() == pytest.approx(reference.leave_one_out(beta, rewards), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    "rewards",
    [
        [0.0, 1.0],
        [1.0] * 7 + [0.0],
        [0.0] * 7 + [1.0],
        [1e308, -1e308, 0.0],
        [5e-324, 0.0],
        [1.0, 1.0 + 2**-52],
        [-1.0, -5e-324, 0.0],
        [1e300] * 3 + [2e300],
    ],
)
def test_the_advantages_of_extreme_rewards_are_finite_and_favour_the_best(rewards: list[float]) -> None:
    found = entropic_advantages(many(rewards)).tolist()
    assert all(map(math.isfinite, found))
    assert math.isfinite(solve_beta(many(rewards)))
    assert min(value for value, reward in zip(found, rewards, strict=True) if reward == max(rewards)) > 0.0
    assert found[rewards.index(min(rewards))] < 0.0


@pytest.mark.parametrize("rewards", [[], [3.0], [0.0, 0.0], [0.7] * 8, [-1e308] * 3])
def test_rewards_that_do_not_differ_give_no_advantage(rewards: list[float]) -> None:
    assert solve_beta(many(rewards)) == 0.0
    assert entropic_advantages(many(rewards)).tolist() == [0.0] * len(rewards)


def test_a_target_of_ln_2_is_met_exactly_with_one_success_of_eight() -> None:
    beta = solve_beta(many([1.0] + [0.0] * 7))
    assert reference.divergence_from_uniform(beta, [1.0] + [0.0] * 7) == pytest.approx(TARGET, abs=1e-12)


@pytest.mark.parametrize("name", ["grpo", "ttt_discover"])
def test_groups_that_say_nothing_are_counted_and_left_out(name: str) -> None:
    empty = sample(1.0, group="a", mask=(False, False))
    given_samples = [
        sample(1.0, group="equal"),
        sample(1.0, group="a"),
        sample(1.0, group="equal"),
        empty,
        sample(0.0, group="a"),
        sample(0.5),
        sample(None, group="a"),
    ]
    prepared = losses.load(name).prepare(given_samples)
    assert dict(prepared.skipped) == {"equal_rewards": 2, "empty_mask": 1, "alone_in_group": 1, "no_reward": 1}
    assert prepared.places == (1, 4)
    first, second = prepared.samples
    assert first.advantages is not None and first.advantages[1] == first.advantages[3] > 0.0 == first.advantages[0]
    assert second.advantages is not None and second.advantages[1] < 0.0


def test_a_sample_knows_why_it_is_refused() -> None:
    good = sample()
    for changes, told in [
        ({"mask": (True,) * 4}, "first token"),
        ({"old_logprobs": (0.0,) * 3}, "3 items"),
        ({"old_logprobs": (0.0, math.nan, 0.0, -1.0)}, "not finite"),
        ({"old_logprobs": (0.0, 0.1, 0.0, -1.0)}, "above zero"),
        ({"old_logprobs": (0.0, -1.0, -1.0, -1.0)}, "not generated"),
        ({"reward": math.inf}, "reward"),
        ({"advantages": (0.0, math.nan, 0.0, 0.0)}, "advantages"),
        ({"weight": math.nan}, "weight"),
        ({"votes": (1.0,)}, "1 votes"),
        ({"teacher": Teacher(tokens=(9, 1, 3), positions=(1,))}, "aligns 1"),
        ({"teacher": Teacher(tokens=(9, 1, 4), positions=(1, 2))}, "token 3"),
    ]:
        with pytest.raises(InvalidSample, match=told):
            good.replace(**changes)


def test_a_teacher_reads_the_same_answer_behind_another_prompt() -> None:
    good = sample()
    teacher = Teacher.with_prompt([70, 71, 72], sample_tokens=good.tokens, mask=good.mask)
    assert teacher == Teacher(tokens=(70, 71, 72, 1, 2, 3), positions=(3, 5))
    assert good.replace(teacher=teacher).teacher is teacher


def test_saos_advantages_come_from_its_critic_and_its_targets_are_the_rewards_to_go() -> None:
    loss = losses.load("sao")
    prepared = loss.prepare([sample(1.0), sample(None), sample(0.0)], values=[(0.0, 0.25, 9.0, 0.5)] * 2 + [(0.0,) * 4])
    assert dict(prepared.skipped) == {"no_reward": 1, "no_signal": 1}, "a reward of zero that the critic foresaw teaches nothing"
    assert prepared.places == (0,)
    lam = advantages.actor_lambda(2)
    assert prepared.samples[0].advantages == pytest.approx((0.0, 0.25 + lam * 0.5, 0.0, 0.5))
    assert prepared.returns == (pytest.approx((0.0, 1.0, 0.0, 1.0)),)
    with pytest.raises(InvalidSample, match="needs values"):
        loss.prepare([sample(1.0)])
    assert dict(loss.prepare([sample(1.0)], values=[(0.0, math.nan, 0.0, 0.0)]).skipped) == {"not_finite": 1}


def test_the_pull_to_the_base_model_is_centred_over_all_tokens_of_the_step() -> None:
    pair = [sample(1.0, group="a"), sample(0.0, group="a"), sample(0.0, group="equal"), sample(0.0, group="equal")]
    base = [(0.0, -1.0, 0.0, -0.5), (0.0, -0.5, 0.0, -2.5), (0.0, -9.0, 0.0, -9.0), (0.0, -9.0, 0.0, -9.0)]
    plain = losses.load("ttt_discover").prepare(pair).samples
    pulled = losses.load("ttt_discover", options={"kl": 0.2}).prepare(pair, base_logprobs=base).samples
    gaps, mean = [(0.5, 0.0), (0.0, 2.0)], 2.5 / 4
    for before, after, (first, second) in zip(plain, pulled, gaps, strict=True):
        assert before.advantages is not None
        wanted = (0.0, before.advantages[1] + 0.2 * (mean - first), 0.0, before.advantages[3] + 0.2 * (mean - second))
        assert after.advantages == pytest.approx(wanted)


def test_votes_reach_the_tokens_of_their_turn_and_a_hint_is_enough_to_train() -> None:
    taught = Teacher.with_prompt([70], sample_tokens=(0, 1, 2, 3), mask=(False, True, False, True))
    loss = losses.load("openclaw_rl")
    given_samples = [sample(None, votes=(1.0, -1.0)), sample(0.0), sample(0.0, teacher=taught), sample(None), sample(-1.0)]
    prepared = loss.prepare(given_samples)
    assert dict(prepared.skipped) == {"no_signal": 1, "no_reward": 1}
    assert prepared.places == (0, 2, 4)
    assert [each.advantages for each in prepared.samples] == [(0.0, 1.0, 0.0, -1.0), (0.0,) * 4, (0.0, -1.0, 0.0, -1.0)]
    assert dict(losses.load("sdft").prepare(given_samples).skipped) == {"no_teacher": 4}


@pytest.mark.parametrize("name", ["grpo", "ttt_discover"])
def test_an_attempt_that_was_split_counts_once_in_its_group(name: str) -> None:
    split = [sample(1.0, group="a", rollout="r1"), sample(1.0, group="a", rollout="r1"), sample(0.0, group="a", rollout="r2")]
    found, wanted = losses.load(name).prepare(split).samples, losses.load(name).prepare(split[1:]).samples
    assert [each.advantages for each in found] == [wanted[0].advantages, wanted[0].advantages, wanted[1].advantages]
    assert dict(losses.load(name).prepare([sample(1.0, rollout="r1"), sample(1.0, rollout="r1")]).skipped) == {"alone_in_group": 2}


@pytest.mark.parametrize("name", ["grpo", "ttt_discover", "ppo_clip", "openclaw_rl"])
def test_advantages_that_a_sample_brings_are_kept(name: str) -> None:
    options = {"advantage": "group"} if name == "ppo_clip" else {}
    own = sample(0.0, group="a", advantages=(0.0, 3.0, 0.0, -3.0))
    prepared = losses.load(name, options=options).prepare([own, sample(1.0, group="a"), sample(0.5, group="a")])
    assert prepared.samples[0] is own
    assert prepared.places == (0, 1, 2)


def test_the_divergence_of_half_precision_logits_is_computed_in_32_bits() -> None:
    logits_V = torch.randn(50, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(log_probabilities(logits_V), torch.log_softmax(logits_V.float(), -1))
