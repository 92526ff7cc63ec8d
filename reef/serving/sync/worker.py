"""What vLLM imports in its workers: ``--worker-extension-cls reef.serving.sync.worker.ReefWorker`` and
``--weight-transfer-config '{"backend": "reef"}'``.

A weight-transfer backend of our own, since those that vLLM brings load while they receive: an update that breaks off half-way kills the
engine. This one receives into host memory on a thread while the engine serves, and loads everything within the ``finish`` call, which runs
between two steps. Whatever may fail does so before, in ``update_weights``: a ``finish`` that raises leaves vLLM's session open.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from reef.serving.sync.channel import Ticket
from reef.serving.sync.held import Version, read_folder, to_apply
from reef.serving.sync.names import BASE
from reef.serving.sync.receiver import Receiver
from reef.serving.sync.shared import gpu_of

BACKEND = "reef"

log = logging.getLogger("vllm.reef.sync")


@dataclass
class InitInfo(WeightTransferInitInfo):
    """Nothing: each transfer has a group of its own."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """Which version the next ``finish`` loads: the staged one of this name, or the parent."""

    name: str


class StagedEngine(WeightTransferEngine):
    """One worker's versions: what serves, what served before, and what waits."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: torch.nn.Module) -> None:
        super().__init__(config, vllm_config, device, model)
        self.folder = Path(vllm_config.model_config.model)  # now: reload_weights changes it
        self.rank = int(vllm_config.parallel_config.rank)
        self.serving: Version | None = None
        self.parent: Version | None = None
        self.receiver: Receiver | None = None
        self._next: Version | None = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        pass

    def start_weight_update(self) -> None:
        self._next = None

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))  # the base class also synchronises a device, which a CPU has not

    def receive_weights(self, update_info: UpdateInfo) -> None:
        self._next = self.find(update_info.name)

    def finish_weight_update(self) -> None:
        wanted, self._next = self._next, None
        if wanted is None:
            raise RuntimeError("nothing was chosen to be loaded; old weights kept")
        previous = self.base()
        try:
            self._load(previous, wanted)
        except Exception:
            log.exception("loading %s failed; going back to %s", wanted.name, previous.name if previous else BASE)
            if previous is None:
                raise
            self._load(None, previous)
            raise
        if self.receiver is not None and self.receiver.version is wanted:
            self.receiver = None
        self.serving, self.parent = wanted, previous

    def shutdown(self) -> None:
        self.receiver = None

    def base(self) -> Version | None:
        """What serves; read from the model's folder the first time. None where that is not a folder, as for a name of a hub."""
        if self.serving is None and self.folder.is_dir():
            self.serving = Version(BASE, read_folder(self.folder))
        return self.serving

    def find(self, name: str) -> Version:
        """A version that can be loaded.

        Raises:
            RuntimeError: there is none of this name.
        """
        receiver = self.receiver
        if receiver is not None and receiver.name == name:
            if receiver.version is not None:
                return receiver.version
            raise RuntimeError(
                f"{name} is not staged on worker {self.rank}: {receiver.error or 'it is still being received'}; old weights kept"
            )
        for version in (self.parent, self.base()):
            if version is not None and version.name == name:
                return version
        if name == BASE and self.folder.is_dir():  # what it was started with, however many swaps ago, is where it was
            return Version(BASE, read_folder(self.folder))
        raise RuntimeError(f"{name} is not staged on worker {self.rank}; old weights kept")

    def _load(self, current: Version | None, wanted: Version) -> None:
        from vllm.model_executor.model_loader.reload.inplace import reload_weights

        names = to_apply(current, wanted)
        if not names:
            return
        weights: Iterator[tuple[str, torch.Tensor]] = ((name, wanted.tensors[name]) for name in names)
        with _quiet():
            reload_weights(self.vllm_config, self.model, weights, None, True)
        repack_tied(self.model, names)

    def live(self, version: Version) -> dict[str, bool]:
        """Whether the device holds the bytes of a version, of the tensors that engines load as they are: those of the norms."""
        here = dict(self.model.named_parameters())
        same = {}
        for name, tensor in version.tensors.items():
            parameter = here.get(name)
            if tensor.dim() == 1 and name.endswith("norm.weight") and parameter is not None and parameter.shape == tensor.shape:
                same[name] = bool(torch.equal(parameter.detach().cpu(), tensor.to(parameter.dtype)))
        return same


def repack_tied(model: torch.nn.Module, names: Collection[str]) -> None:
    """Have layers that share the weight of another take what was loaded into that one, as an output layer does the embedding.

    On a CPU a layer computes with a copy of its weight, packed when it was loaded; and vLLM's reload sees to the layers alone that the
    weights came for. An output layer that goes on with the old embedding is no error to anybody: its answers are just a little wrong.

    Args:
        names: of the tensors that were loaded.
    """
    shared: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        shared.setdefault(id(parameter), []).append(name)
    loaded = {_tail(name) for name in names}
    for places in shared.values():
        if len(places) < 2 or loaded.isdisjoint(map(_tail, places)):
            continue
        for layer in (model.get_submodule(place.rpartition(".")[0]) for place in places):
            if hasattr(layer, "cpu_linear"):
                layer.quant_method.process_weights_after_loading(layer)


def _tail(name: str) -> str:
    """The layer and the parameter alone: what is above may be called otherwise in the model's file, and LoRAs wrap a layer in another."""
    return ".".join(name.replace(".base_layer.", ".").split(".")[-2:])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """vLLM warns of every layer that is not loaded anew; here that is meant, and three lines a layer at each swap would hide the rest."""
    loggers = [logging.getLogger(f"vllm.model_executor.model_loader.reload.{module}") for module in ("layerwise", "inplace")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


class ReefWorker:
    """Mixed into vLLM's worker; called by ``/collective_rpc``, which gives text and takes dicts."""

    rank: int
    weight_transfer_engine: Any
    device: Any

    def reef_receive(self, ticket: str) -> dict[str, Any]:
        """Take part in a transfer; returns at once."""
        engine, told = self._reef_engine(), Ticket.parse(ticket)
        device = self.device

        def prepare() -> None:
            if device is not None and device.type == "cuda":
                torch.cuda.set_device(device)  # the current device is each thread's own

        engine.receiver = Receiver(told, rank=told.first_rank + self.rank, serving=engine.base, prepare=prepare)
        return {"rank": told.first_rank + self.rank}

    def reef_versions(self, digests: str = "") -> dict[str, Any]:
        """What serves, what served before, what is staged. With anything in ``digests`` also the digest of what serves, and the probe;
        ``busy`` and no digest while it is still being made."""
        engine = self._reef_engine()
        serving, receiver = engine.base(), engine.receiver
        told: dict[str, Any] = {
            "worker": self.rank,
            "serving": serving.name if serving else BASE,
            "parent": engine.parent.name if engine.parent else "",
            "staged": receiver.name if receiver is not None and receiver.version is not None else "",
            "busy": receiver is not None and receiver.busy,
            "gpu": gpu_of(self.device),
        }
        if digests and serving is not None:
            if len(serving.known) < len(serving.tensors):  # not here: this is the thread that serves
                threading.Thread(target=serving.digests, name="reef-digests", daemon=True).start()
                return {**told, "busy": True}
            live = engine.live(serving)
            told |= {"digest": serving.digest(), "probed": len(live), "unlike": sorted(name for name, same in live.items() if not same)}
        return told

    def reef_adopt(self, name: str, folder: str) -> dict[str, Any]:
        """Take note of weights that the engine has read from the disk by itself."""
        engine = self._reef_engine()
        engine.serving, engine.parent = Version(name, read_folder(Path(folder))), engine.base()
        repack_tied(engine.model, engine.serving.tensors)
        return {}

    def reef_drop(self, name: str) -> dict[str, Any]:
        """Forget a staged version."""
        engine = self._reef_engine()
        if engine.receiver is not None and engine.receiver.name == name:
            engine.receiver = None
        return {}

    def _reef_engine(self) -> StagedEngine:
        engine = self.weight_transfer_engine
        if not isinstance(engine, StagedEngine):
            raise RuntimeError(f'this engine was started without --weight-transfer-config \'{{"backend": "{BACKEND}"}}\'')
        return engine


WeightTransferEngineFactory.register_engine(BACKEND, StagedEngine)
