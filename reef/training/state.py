"""What the next step of training needs beside the weights: the optimizer, the critic, the averaged teacher, and how far it is.

Kept in the ``state`` folder of a checkpoint, as safetensors and JSON, whole whatever the number of ranks that wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from reef.errors import TrainingError
from reef.training.checkpoint import STATE
from reef.training.distributed import like, whole

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(slots=True)
class Progress:
    """How far a chain of checkpoints is."""

    updates: int = 0
    """Of the weights."""
    critic_steps: int = 0


def read_progress(folder: Path | None) -> Progress:
    """Of a checkpoint; zeros where there is none."""
    file = folder and folder / STATE / "progress.json"
    return Progress(**orjson.loads(file.read_bytes())) if file and file.is_file() else Progress()


def write_progress(folder: Path, progress: Progress) -> None:
    """See :func:`read_progress`."""
    (folder / STATE).mkdir(exist_ok=True)
    (folder / STATE / "progress.json").write_bytes(orjson.dumps(asdict(progress)))


def read_tensors(folder: Path | None, name: str) -> dict[str, Tensor]:
    """The tensors of one part of the state; none where it is not there."""
    file = folder and folder / STATE / f"{name}.safetensors"
    return load_file(file) if file and file.is_file() else {}


def write_tensors(folder: Path, name: str, tensors: Mapping[str, Tensor]) -> None:
    """See :func:`read_tensors`. Called by the leading rank, with whole tensors."""
    (folder / STATE).mkdir(exist_ok=True)
    if tensors:
        save_file({key: tensor.clone() for key, tensor in tensors.items()}, folder / STATE / f"{name}.safetensors")


def put_into(trained: Mapping[str, Tensor], tensors: Mapping[str, Tensor], *, what: str) -> None:
    """Overwrite tensors with kept ones.

    Raises:
        TrainingError: the names or shapes are others.
    """
    if trained.keys() != tensors.keys() or any(trained[name].shape != tensors[name].shape for name in trained):
        raise TrainingError(
            f"the {what} kept with the parent does not fit what is trained", hint="Was training.targets or freeze_embedding changed?"
        )
    with torch.no_grad():
        for name, tensor in trained.items():
            tensor.copy_(like(tensors[name], pattern=tensor))


def optimizer_tensors(optimizer: torch.optim.Optimizer, trained: Mapping[str, torch.nn.Parameter]) -> dict[str, Tensor]:
    """The moments of AdamW by the names of the parameters, whole. A collective."""
    found: dict[str, Tensor] = {}
    for name, parameter in trained.items():
        kept = optimizer.state.get(parameter)
        if kept:
            found |= {f"{name}.{moment}": kept[moment] for moment in MOMENTS} | {f"{name}.step": kept["step"]}
    return whole(found)


def restore_optimizer(
    optimizer: torch.optim.Optimizer, trained: Mapping[str, torch.nn.Parameter], tensors: Mapping[str, Tensor], *, what: str
) -> None:
    """Go on where :func:`optimizer_tensors` left off.

    Raises:
        TrainingError: it was the optimizer of something else.
    """
    if not tensors:
        return
    expected = {f"{name}.{part}" for name in trained for part in (*MOMENTS, "step")}
    if tensors.keys() != expected or any(tensors[f"{name}.exp_avg"].shape != parameter.shape for name, parameter in trained.items()):
        raise TrainingError(
            f"the {what} kept with the parent does not fit what is trained", hint="Was training.targets or freeze_embedding changed?"
        )
    for name, parameter in trained.items():
        moments = {moment: like(tensors[f"{name}.{moment}"], pattern=parameter.detach()) for moment in MOMENTS}
        optimizer.state[parameter] = {"step": tensors[f"{name}.step"].clone(), **moments}
