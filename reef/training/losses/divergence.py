"""How far two distributions over tokens are apart: functions of their log-probabilities, over the last dimension.

Full vocabulary, or the likeliest K tokens and one bucket for all others: the bucket keeps a student from moving probability to where nobody
looks. The teacher is a constant: no gradient reaches it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def log_probabilities(logits: Tensor) -> Tensor:
    """Normalised over the last dimension, in at least 32 bits."""
    wide = logits.dtype if logits.dtype in (torch.float32, torch.float64) else torch.float32
    return torch.log_softmax(logits, dim=-1, dtype=wide)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(p ‖ q) = Σ p·(log p − log q) of log-probabilities; what p holds for impossible adds nothing."""
    impossible = p == -torch.inf
    return (p.exp() * (p - q).masked_fill(impossible, 0.0)).sum(dim=-1)


def forward_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(teacher ‖ student): the student has to cover all that the teacher would say."""
    return kl(teacher.detach(), student)


def reverse_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(student ‖ teacher): the student must not say what the teacher would not."""
    return kl(student, teacher.detach())


def jsd(student: Tensor, teacher: Tensor, *, beta: float) -> Tensor:
    """JSD_β = β·KL(t ‖ m) + (1 − β)·KL(s ‖ m), m = β·t + (1 − β)·s, 0 < β < 1 (arXiv 2306.13649)."""
    teacher = teacher.detach()
    weights = torch.tensor([beta, 1.0 - beta], dtype=student.dtype, device=student.device).log()
    middle = torch.logaddexp(teacher + weights[0], student + weights[1])
    return beta * kl(teacher, middle) + (1.0 - beta) * kl(student, middle)


def bucketed(logs_V: Tensor, ids_K: Tensor) -> Tensor:
    """Log-probabilities of the tokens ``ids_K`` and, last, of all others together: (…, K + 1), or (…, V) where no others are left.

    Args:
        logs_V: normalised, (…, V).
        ids_K: distinct tokens, (…, K).
    """
    chosen_K = logs_V.gather(-1, ids_K)
    if ids_K.shape[-1] >= logs_V.shape[-1]:
        return chosen_K
    others_V = logs_V.scatter(-1, ids_K, -torch.inf)  # 1 − Σ of the chosen would lose the digits of a small rest
    return torch.cat([chosen_K, others_V.logsumexp(dim=-1, keepdim=True)], dim=-1)
