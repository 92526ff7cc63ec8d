"""The weights that one worker holds on the host: those that serve, those before them, and those that wait. torch, and nothing of vLLM.

Tensors that did not change are shared between them, so the parent costs only the bytes that a release changed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

LAYER = re.compile(r"^(.*?\.\d+)\.")
"""Up to the outermost number of a parameter's name: the layer that it is of."""


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor on the host, without a copy where it is contiguous."""
    import torch

    return memoryview(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())


def tensor_digest(tensor: torch.Tensor) -> str:
    """SHA-256 over type, shape and bytes."""
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
    digest.update(tensor_bytes(tensor))
    return digest.hexdigest()


def digest_of(digests: Mapping[str, str]) -> str:
    """One digest over all tensors, whatever their order."""
    return hashlib.sha256("\n".join(f"{name} {digests[name]}" for name in sorted(digests)).encode()).hexdigest()


def read_folder(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a folder's safetensors files, mapped into memory and not yet read.

    Raises:
        OSError: there is no such file, or it is broken.
    """
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(str(file), framework="pt") as opened:
                tensors.update({name: opened.get_tensor(name) for name in opened.keys()})  # noqa: SIM118 - not a mapping
        except SafetensorError as error:
            raise OSError(f"{file} is broken: {error}") from None
    if not tensors:
        raise OSError(f"{folder} holds no *.safetensors")
    return tensors


@dataclass(slots=True)
class Version:
    """A model's tensors under one name. The digests of tensors are made when they are first asked for."""

    name: str
    tensors: dict[str, torch.Tensor]
    known: dict[str, str] = field(default_factory=dict)

    def digests(self) -> dict[str, str]:
        """SHA-256 of each tensor."""
        for name, tensor in self.tensors.items():
            if name not in self.known:
                self.known[name] = tensor_digest(tensor)
        return self.known

    def digest(self) -> str:
        """SHA-256 over all of them."""
        return digest_of(self.digests())

    def with_changes(self, name: str, changes: Mapping[str, torch.Tensor], digests: Mapping[str, str]) -> Version:
        """A version that shares what did not change."""
        return Version(name, {**self.tensors, **changes}, {**self.known, **digests})


def to_apply(current: Version | None, wanted: Version) -> list[str]:
    """The tensors that have to be loaded to get from one version to another, in the order of the model's file.

    An engine fuses tensors of one layer (query, key and value; the experts of a mixture) and loads a fused one only as a whole, so all of a
    layer are named where any of it differs.
    """
    if current is None:
        return list(wanted.tensors)
    changed = {name for name, tensor in wanted.tensors.items() if current.tensors.get(name) is not tensor}
    layers = {layer_of(name) for name in changed}
    return [name for name in wanted.tensors if layer_of(name) in layers]


def layer_of(name: str) -> str:
    """The layer that a tensor belongs to; a tensor outside of all layers is its own."""
    found = LAYER.match(name)
    return found.group(1) if found else name


def unlike(current: Version, manifest: Iterable[tuple[str, str, tuple[int, ...]]]) -> str:
    """What makes tensors unfit for a model, in words; empty if they fit.

    Found before anything is loaded, because an engine that fails half-way through loading cannot go back by itself.
    """
    for name, dtype, shape in manifest:
        here = current.tensors.get(name)
        if here is None:
            return f"the model has no {name}"
        if tuple(here.shape) != tuple(shape):
            return f"{name} is {tuple(shape)}, and the model's is {tuple(here.shape)}"
        if here.is_floating_point() != (dtype.startswith(("float", "bfloat"))):
            return f"{name} is {dtype}, and the model's is {here.dtype}"
    return ""
