"""Keeps the engine supplied with the weights that it has to have, from a thread of the learner's process.

What is wanted is read from the database and what is there is asked of the engine, so it does not matter who moved a head, and an engine
that was restarted gets everything again. Weights are laid out once as a folder of their own, sharing their bytes with the repository.

LoRAs are beside each other. Full weights (:mod:`reef.learner.full_weights`) are alone: the engine of a scenario whose head has them serves
nothing else, and whoever comes second is refused.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import structlog

from reef.artifacts import folders
from reef.artifacts.folders import Kind
from reef.errors import ReefError, StorageError
from reef.learner.full_weights import FullWeights
from reef.releases import staging
from reef.releases.publishing import writing
from reef.releases.staging import Wanted
from reef.releases.store import ReleaseStore
from reef.serving.engine.client import EngineClient
from reef.serving.sync.interface import weights_in
from reef.serving.sync.lora import LoraSync
from reef.serving.sync.names import BASE

log = structlog.get_logger()

STAGE_S = 120.0
"""Bound on bringing one LoRA to the engine."""


class Stager:
    """Brings weights to one engine: LoRAs beside each other, or the full weights of one scenario.

    Args:
        store: database and artifacts.
        client: the engine.
        folder: where weights are laid out.
        keep: how many releases of a scenario stay there.
        stop: set when it is time to end.
        full: brings full weights; without it only LoRAs are.
    """

    def __init__(
        self,
        store: ReleaseStore,
        *,
        client: EngineClient,
        folder: Path,
        keep: int,
        stop: threading.Event,
        full: FullWeights | None = None,
    ) -> None:
        self._store = store
        self._client = client
        self._folder = folder
        self._keep = keep
        self._stop = stop
        self._full = full
        self._sure = full is None
        """Whether it is known since the start of this process what the engine serves."""
        self._served = ""
        """What the engine answered by when last seen: asked for only where it may be another."""
        self._kinds: dict[str, Kind] = {}
        """Of contents that were looked at, by commit."""
        self._syncs: dict[str, LoraSync] = {}
        self._refused: dict[str, str] = {}
        """Names that could not be staged, and why: said once, and tried again each time."""

    def start(self, *, interval_s: float) -> None:
        """Begin, in a thread."""
        threading.Thread(target=self._run, args=(interval_s,), name="staging", daemon=True).start()

    def _run(self, interval_s: float) -> None:
        told = ""
        while not self._stop.wait(interval_s):
            try:
                self.look()
                told = ""
            except ReefError as error:
                if error.message != told:  # an engine may be down for hours
                    log.warning("weights wait for the engine", reason=error.message)
                told = error.message
                self._stop.wait(interval_s * 4)
            except Exception:  # a bug; one that is seen, and the next look may find another state
                log.exception("staging failed")
                self._stop.wait(interval_s * 4)

    def look(self) -> None:
        """Compare what is wanted with what is there, and bring what is missing.

        Raises:
            EngineError: the engine does not answer; nothing is noted as being there then.
        """
        with self._store.engine.connect() as connection:
            wanted = staging.wanted(connection, keep=self._keep)
            noted = staging.noted(connection, self._client.url)
            had = staging.had(connection, self._client.url) if wanted else set()
        if not wanted and not noted and self._sure:
            return
        kinds = {weights.name: self._kind(weights) for weights in wanted}
        try:
            loaded = self._client.loras()
            if self._full is not None and (not self._sure or self._served != BASE or Kind.CHECKPOINT in kinds.values()):
                self._served = self._client.served()
        except ReefError:
            self._forget(noted)
            if not wanted and not noted:  # there is time until something is
                return
            raise
        self._sure = True
        self._forget(noted - loaded - {self._served})
        head = self._whose(wanted, kinds=kinds, had=had)
        if self._full is not None:
            self._look_at_full(self._full, head, noted=noted)
            self._forget(noted - loaded - {self._served})
        loras = [weights for weights in wanted if kinds[weights.name] is Kind.LORA]
        if head is not None:
            self._unload(noted & loaded if self._served == head.name else ())
            for weights in loras:
                if weights.scenario != head.scenario or weights.step is None:
                    self._refuse(weights.name, _taken(head))
        elif self._served in ("", BASE):  # no LoRA was made for others
            self._look_at_loras(loras, there=noted & loaded)

    def _look_at_full(self, full: FullWeights, head: Wanted | None, *, noted: set[str]) -> None:
        before = self._served
        self._served = full.look(head, folder=self._laid_out, served=before, noted=noted)
        if self._served == BASE != before:
            with writing(self._store.engine) as tx:
                staging.put_away(tx, self._client.url, before.rpartition(".")[0])
        if head is not None and full.problem:
            self._refused[head.name] = full.problem
        elif head is not None:
            self._refused.pop(head.name, None)

    def _look_at_loras(self, wanted: Sequence[Wanted], *, there: set[str]) -> None:
        for weights in wanted:
            if weights.name not in there:
                self._stage(weights)
        self._unload(there - {weights.name for weights in wanted})

    def _whose(self, wanted: Sequence[Wanted], *, kinds: Mapping[str, Kind | None], had: set[str]) -> Wanted | None:
        """The head whose full weights the engine gets; None where it gets LoRAs. Who had it first has it."""
        heads = {weights.scenario: weights for weights in wanted if weights.head and kinds[weights.name] is Kind.CHECKPOINT}
        if not heads:
            return None
        owner = min((weights.scenario for weights in wanted if weights.step is not None), key=lambda name: (name not in had, name))
        for scenario, weights in heads.items():
            if scenario != owner:
                self._refuse(weights.name, f"the engine has the weights of {owner}, and full weights cannot be beside any others")
            elif self._full is None:
                self._refuse(weights.name, "these are full weights, and nothing was set up to bring such")
        return heads.get(owner) if self._full is not None else None

    def _kind(self, wanted: Wanted) -> Kind | None:
        """What weights are; None where they cannot be read."""
        commit = wanted.content.commit
        if commit not in self._kinds:
            try:
                self._kinds[commit] = folders.kind_of(self._store.artifacts.read(commit))
            except ReefError as error:
                self._refuse(wanted.name, error.message)
                return None
        return self._kinds[commit]

    def _unload(self, names: Iterable[str]) -> None:
        for name in names:
            self._forget([name])
            self._sync(name.rpartition(".")[0]).drop(name)

    def _refuse(self, name: str, reason: str) -> None:
        if self._refused.get(name) != reason:
            log.error("weights are not on the engine", name=name, reason=reason)
        self._refused[name] = reason

    def _stage(self, wanted: Wanted) -> None:
        try:
            weights = weights_in(self._laid_out(wanted), name=wanted.name)
            self._sync(wanted.scenario).stage(weights, deadline_s=STAGE_S)
        except ReefError as error:
            self._refuse(wanted.name, error.message)
            return
        self._refused.pop(wanted.name, None)
        with writing(self._store.engine) as tx:
            staging.note(tx, self._client.url, wanted)
        log.info("weights are on the engine", name=wanted.name)

    def why_not(self, name: str) -> str:
        """Why weights could not be staged; empty where nothing is known to be wrong."""
        return self._refused.get(name, "")

    def _laid_out(self, wanted: Wanted) -> Path:
        return laid_out(self._store, wanted, folder=self._folder)

    def _sync(self, scenario: str) -> LoraSync:
        return self._syncs.setdefault(scenario, LoraSync([self._client], keep=self._keep))

    def _forget(self, names: Sequence[str] | set[str]) -> None:
        if names:
            with writing(self._store.engine) as tx:
                staging.forget(tx, self._client.url, names)


def _taken(head: Wanted) -> str:
    """Why others get nothing of an engine with full weights."""
    return f"the engine has the full weights of {head.scenario}, and no LoRA was made for those: give {head.scenario} an engine of its own"


def laid_out(store: ReleaseStore, wanted: Wanted, *, folder: Path) -> Path:
    """The folder of some weights, made where it is not there; never changed afterwards."""
    target = folder / wanted.content.content_id
    if not target.is_dir():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(prefix=".in-", dir=folder))
        except OSError as error:
            raise _refused_by_disk(wanted, folder, error) from error
        try:
            folders.lay_out(store.artifacts, store.artifacts.read(wanted.content.commit), temporary / "weights")
            if not target.is_dir():
                (temporary / "weights").rename(target)
        except OSError as error:
            raise error if isinstance(error, ReefError) else _refused_by_disk(wanted, folder, error) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return target


def _refused_by_disk(wanted: Wanted, folder: Path, error: OSError) -> StorageError:
    return StorageError(f"{wanted.name} cannot be laid out in {folder}: {error}", hint="Is the disk full?")
