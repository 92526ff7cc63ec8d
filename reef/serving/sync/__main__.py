"""The process that brings full weights to an engine: ``python -m reef.serving.sync ORDER``, started by :mod:`reef.serving.sync.bring`.

It is rank 0 of the transfer, and the only place beside the trainer and the engine that loads torch.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

from reef import process
from reef.errors import ReefError, WeightSyncError
from reef.serving.engine.client import EngineClient
from reef.serving.sync.bring import Brought, Order
from reef.serving.sync.choose import choose, share_gpu
from reef.serving.sync.disk import DiskSync
from reef.serving.sync.gloo import own_address
from reef.serving.sync.interface import Swap, WeightKind, weights_in
from reef.serving.sync.transfer import TransferSync


def main(text: str) -> int:
    process.configure_logging()
    process.when_parent_ends(lambda: os._exit(1))
    order = Order.parse(text)
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries print
    try:
        with process.staying_put() as cores:
            import torch
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(cores)
        told = {"brought": asdict(carry_out(order))}
    except ReefError as error:
        told = {"error": {"message": error.message, "hint": error.hint, "timeout": isinstance(error, TimeoutError)}}
    answer.write(json.dumps(told))
    answer.flush()
    return 0


def carry_out(order: Order) -> Brought:
    """Make an engine serve what is ordered, under its own name, and prove it.

    Raises:
        WeightSyncError: it serves what it did.
    """
    engine = EngineClient(order.url, key=os.environ.get(order.key_env, "") if order.key_env else "")
    engine.follow_names(alias_s=order.alias_s)
    base = Path(order.base) if order.base else None
    # One that follows was started with all of our flags. To ask it for its worker would take one that hangs for one without.
    way = order.way if order.way != "auto" else "ipc" if share_gpu([engine]) else "gloo"
    sync = choose(WeightKind.FULL, [engine], way=way, base=base, host=own_address(urlsplit(order.url).hostname or ""))
    assert isinstance(sync, TransferSync | DiskSync)
    if not order.folder:
        return _brought(order, sync.back_to_base(deadline_s=order.activate_s))
    weights = weights_in(Path(order.folder), name=order.name)
    try:
        sync.verify(weights)
    except WeightSyncError:
        staged = sync.stage(weights, deadline_s=order.stage_s)
        done = sync.activate(weights, deadline_s=order.activate_s)
        sync.verify(weights)
        return _brought(order, done, size_bytes=staged.size_bytes, seconds=staged.seconds)
    return Brought(order.name)


def _brought(order: Order, swap: Swap, *, size_bytes: int = 0, seconds: float = 0.0) -> Brought:
    return Brought(order.name, pause_s=swap.pause_s, stage_s=seconds, size_bytes=size_bytes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
