"""Distillation and hints equal a plain reference; the teacher is a constant; the tail bucket holds what the likeliest tokens leave."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.support import loss_reference as reference

torch = pytest.importorskip("torch")

from reef.errors import ConfigError  # noqa: E402
from reef.training import losses  # noqa: E402
from reef.training.losses import divergence  # noqa: E402
from reef.training.losses.contract import Inputs, Need  # noqa: E402
from reef.training.losses.openclaw_rl import hint_loss  # noqa: E402

B, T, V, K = 2, 5, 9, 4
KINDS = ("forward_kl", "reverse_kl", "jsd")
SEEDS = range(8)


def made(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Any:
        return 2.0 * torch.randn(*shape, generator=generator, dtype=torch.float64)

    logits_BTV, teacher_BTV = normal(B, T, V), normal(B, T, V)
    tokens_BT = torch.randint(0, V, (B, T), generator=generator)
    mask_BT = torch.rand(B, T, generator=generator) < 0.6
    mask_BT[:, 0], mask_BT[:, 1] = False, True
    logprobs_BT = torch.log_softmax(logits_BTV, -1).gather(-1, tokens_BT[..., None])[..., 0]
    return {
        "logprobs_BT": logprobs_BT,
        "old_logprobs_BT": (logprobs_BT + 0.5 * normal(B, T)).clamp(max=-0.001),
        "mask_BT": mask_BT,
        "logits_BTV": logits_BTV,
        "teacher_logits_BTV": teacher_BTV,
        "teacher_logprobs_BT": torch.log_softmax(teacher_BTV, -1).gather(-1, tokens_BT[..., None])[..., 0],
    }


def expected(data: dict[str, Any], *, kind: str, vocabulary: str, cap: float | None, by: str) -> list[float]:
    found = []
    for row in range(B):
        student = [reference.softmax(logits) for logits in data["logits_BTV"][row].tolist()]
        teacher = [reference.softmax(logits) for logits in data["teacher_logits_BTV"][row].tolist()]
        new, old, mask = (data[name][row].tolist() for name in ("logprobs_BT", "old_logprobs_BT", "mask_BT"))
        weights = reference.importance(new, old, mask, cap=cap, by=by)

        def term(t: int, student: Any = student, teacher: Any = teacher, weights: Any = weights) -> float:
            s, q = student[t], teacher[t]
            if vocabulary == "top":
                ids = reference.likeliest(s, K)
                s, q = reference.bucketed(s, ids), reference.bucketed(q, ids)
            return weights[t] * reference.divergence(s, q, kind=kind, beta=0.3)

        found.append(reference.over_generated(mask, term))
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocabulary", ["full", "top"])
@pytest.mark.parametrize(("cap", "by"), [(2.0, "token"), (2.0, "sequence"), (None, "token")])
@pytest.mark.parametrize("seed", SEEDS)
def test_distillation_equals_the_plain_reference(kind: str, vocabulary: str, cap: float | None, by: str, seed: int) -> None:
    data = made(seed)
    options = {"divergence": kind, "vocabulary": vocabulary, "top_k": K, "beta": 0.3, "cap": cap, "cap_by": by}
    output = losses.load("distill", options=options)(Inputs(**data))
    reached = torch.tensor(expected(data, kind=kind, vocabulary=vocabulary, cap=cap, by=by), dtype=torch.float64)
    assert torch.allclose(output.loss_B, reached, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocabulary", ["full", "top"])
def test_the_gradient_passes_a_check_and_never_reaches_the_teacher(kind: str, vocabulary: str) -> None:
    data = made(1)
    loss = losses.load("distill", options={"divergence": kind, "vocabulary": vocabulary, "top_k": K})
    teacher_BTV = data.pop("teacher_logits_BTV").requires_grad_()
    logits_BTV = data.pop("logits_BTV").requires_grad_()
    assert torch.autograd.gradcheck(
        lambda logits: loss(Inputs(**data, logits_BTV=logits, teacher_logits_BTV=teacher_BTV.detach())).loss_B, (logits_BTV,)
    )
    logprobs_BT = data.pop("logprobs_BT").requires_grad_()
    inputs = Inputs(**data, logprobs_BT=logprobs_BT, logits_BTV=logits_BTV, teacher_logits_BTV=teacher_BTV)
    loss(inputs).loss_B.sum().backward()
    assert teacher_BTV.grad is None
    assert logprobs_BT.grad is None, "the importance weight is a constant"


@pytest.mark.parametrize("kind", KINDS)
def test_a_student_that_equals_its_teacher_has_no_loss_and_no_gradient(kind: str) -> None:
    data = made(2)
    logits_BTV = data["teacher_logits_BTV"].clone().requires_grad_()
    output = losses.load("distill", options={"divergence": kind})(Inputs(**{**data, "logits_BTV": logits_BTV}))
    output.total(samples=B).backward()
    assert output.loss_B.abs().max() < 1e-12
    assert logits_BTV.grad is not None
    assert logits_BTV.grad.abs().max() < 1e-12


@pytest.mark.parametrize("seed", SEEDS)
def test_on_policy_distillation_follows_the_gradient_of_the_reverse_divergence(seed: int) -> None:
    """Averaged over the student's own choice of the token, the sampled loss has the gradient of KL(student ‖ teacher)."""
    generator = torch.Generator().manual_seed(seed)
    logits_V = torch.randn(V, generator=generator, dtype=torch.float64).requires_grad_()
    teacher_V = torch.log_softmax(torch.randn(V, generator=generator, dtype=torch.float64), -1)
    student_V = torch.log_softmax(logits_V, -1)
    (wanted_V,) = torch.autograd.grad(divergence.reverse_kl(student_V, teacher_V), logits_V, retain_graph=True)
    inputs = Inputs(
        logprobs_BT=student_V[:, None],  # one sample per token that may be drawn
        old_logprobs_BT=student_V.detach()[:, None],
        mask_BT=torch.ones(V, 1, dtype=torch.bool),
        teacher_logprobs_BT=teacher_V[:, None],
        weights_B=student_V.detach().exp(),
    )
    loss = losses.load("opd")
    assert loss.needs == {Need.TEACHER_LOGPROBS}
    (found_V,) = torch.autograd.grad(loss(inputs).loss_B.sum(), logits_V)
    assert torch.allclose(found_V, wanted_V, rtol=1e-10, atol=1e-12)


def test_the_bucket_holds_the_rest_to_its_last_digits() -> None:
    logits_V = torch.tensor([30.0, 29.0, -10.0, -11.0], dtype=torch.float64)
    logs = divergence.bucketed(torch.log_softmax(logits_V, -1), torch.tensor([0, 1]))
    rest = math.log(math.exp(-40.0) + math.exp(-41.0)) - math.log1p(math.exp(-1.0))
    assert logs[-1].item() == pytest.approx(rest, rel=1e-12)
    every = divergence.bucketed(torch.log_softmax(logits_V, -1), torch.tensor([3, 1, 0, 2]))
    assert every.exp().sum().item() == pytest.approx(1.0)
    assert len(every) == 4


def test_a_token_that_the_teacher_holds_for_impossible_adds_nothing() -> None:
    teacher_V = torch.tensor([0.0, -math.inf, -math.inf]).log_softmax(-1)
    student_V = torch.tensor([0.0, 0.0, 0.0], requires_grad=True)
    value = divergence.forward_kl(student_V.log_softmax(-1), teacher_V)
    value.backward()
    assert value.item() == pytest.approx(math.log(3.0))
    assert student_V.grad is not None
    assert student_V.grad.isfinite().all()


def test_named_methods_are_settings_of_one_loss() -> None:
    sdft, sdpo, opd = (losses.load(name) for name in ("sdft", "sdpo", "opd"))
    assert (sdft.teacher, sdpo.teacher, opd.teacher) != (None, None, None)
    assert sdft.teacher is not None and (sdft.teacher.kind, sdft.teacher.rate) == ("ema", 0.01)
    assert sdpo.teacher is not None and (sdpo.teacher.kind, sdpo.teacher.rate) == ("ema", 0.05)
    assert opd.teacher is not None and opd.teacher.kind == "frozen"
    data = made(3)
    same = {"divergence": "jsd", "vocabulary": "top", "top_k": 100, "cap": 2.0, "cap_by": "token"}
    assert torch.equal(sdpo(Inputs(**data)).loss_B, losses.load("distill", options=same)(Inputs(**data)).loss_B)
    same = {"divergence": "forward_kl", "vocabulary": "full", "cap": 2.0, "cap_by": "sequence"}
    assert torch.equal(sdft(Inputs(**data)).loss_B, losses.load("distill", options=same)(Inputs(**data)).loss_B)
    with pytest.raises(ConfigError, match="reverse_kl"):
        losses.load("opd", options={"divergence": "jsd"})


@pytest.mark.parametrize("seed", SEEDS)
def test_the_hints_part_equals_the_plain_reference_and_passes_a_check(seed: int) -> None:
    data, bounds = made(seed), {"low": 0.2, "high": 0.28}
    ids_BTK = torch.log_softmax(data["logits_BTV"], -1).topk(K, dim=-1).indices
    student_BTK = torch.log_softmax(data["logits_BTV"], -1).gather(-1, ids_BTK)
    generator = torch.Generator().manual_seed(seed)
    old_BTK = student_BTK + 0.4 * torch.randn(B, T, K, generator=generator, dtype=torch.float64)
    teacher_BTK = torch.log_softmax(data["teacher_logits_BTV"], -1).gather(-1, ids_BTK)
    rest = {"old_BTK": old_BTK, "teacher_BTK": teacher_BTK, "mask_BT": data["mask_BT"], **bounds}
    wanted = [
        reference.hint(*(value[row].tolist() for value in (student_BTK, old_BTK, teacher_BTK, data["mask_BT"])), **bounds)
        for row in range(B)
    ]
    assert torch.allclose(hint_loss(student_BTK, **rest), torch.tensor(wanted, dtype=torch.float64), rtol=1e-10, atol=1e-12)
    assert torch.autograd.gradcheck(lambda student: hint_loss(student, **rest), (student_BTK.clone().requires_grad_(),))
    whole = losses.load("openclaw_rl", options={"rl": 0.5, "opd": 2.0, "top_k": K})
    advantages_BT = torch.ones(B, T, dtype=torch.float64)
    given = {**data, "advantages_BT": advantages_BT, "top_ids_BTK": ids_BTK, "top_logprobs_BTK": old_BTK}
    output = whole(Inputs(**given, taught_B=torch.tensor([True, False])))
    votes = [
        reference.ppo(*(given[name][row].tolist() for name in ("logprobs_BT", "old_logprobs_BT", "mask_BT", "advantages_BT")), **bounds)
        for row in range(B)
    ]
    assert output.loss_B.tolist() == pytest.approx([0.5 * votes[0] + 2.0 * wanted[0], 0.5 * votes[1]], rel=1e-10)


def test_a_hint_teaches_on_the_policys_own_likeliest_tokens_where_none_were_kept() -> None:
    data = made(4)
    logits_BTV = data["logits_BTV"].clone().requires_grad_()
    given = {**data, "logits_BTV": logits_BTV, "advantages_BT": torch.zeros(B, T, dtype=torch.float64)}
    losses.load("openclaw_rl", options={"top_k": K})(Inputs(**given)).total(samples=B).backward()
    assert logits_BTV.grad is not None
    assert logits_BTV.grad[data["mask_BT"]].abs().max() > 0.0
    assert (logits_BTV.grad[~data["mask_BT"]] == 0.0).all()
