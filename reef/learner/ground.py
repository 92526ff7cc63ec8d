"""Where weights are trained: what a recipe needs of the configuration, and the folders it may use."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

from reef.config import Config, TrainingConfig
from reef.errors import ConfigError
from reef.serving.models import resolving
from reef.training.prompts import ChatPrompts


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingGround:
    """What a recipe gets that trains."""

    settings: TrainingConfig
    model: str
    """What is trained, as the configuration calls it."""
    base_dir: Path
    """What relative paths in the configuration start from."""
    jobs: Path
    """Folders of trainings under way and of what they start from, by scenario."""
    max_staleness: int
    """How many releases a record may be older than the head."""
    chat_template: Path | None = None
    """What shows a conversation to the model instead of the template of its own."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when the learner ends."""

    @classmethod
    def of(cls, config: Config, *, stop: threading.Event) -> TrainingGround:
        """As a configuration says."""
        return cls(
            settings=config.training,
            model=config.training.base or config.serving.vllm.model,
            base_dir=config.path(""),
            jobs=config.state_dir / "training",
            max_staleness=config.reef.max_staleness,
            chat_template=config.path(config.serving.vllm.chat_template) if config.serving.vllm.chat_template else None,
            stop=stop,
        )

    def base(self) -> Path:
        """The folder of the model that every scenario starts from.

        Raises:
            ConfigError: none is configured, or it is not there.
        """
        if not self.model:
            raise ConfigError(
                "there is no model to train", hint="Set serving.vllm.model, or training.base with an engine that runs already."
            )
        return self.folder(self.model)

    def prompts(self) -> ChatPrompts:
        """Conversations as the tokens that the model reads.

        Raises:
            ConfigError: the model or its chat template is not there.
        """
        return ChatPrompts(self.base(), template=self.chat_template)

    def folder(self, model: str) -> Path:
        """The folder of a model, named as in ``serving.vllm.model``. One that Reef can make is made; nothing else is fetched.

        Raises:
            ConfigError: it is not there.
        """
        if resolving.made_here(model):
            return resolving.place_of(model) if resolving.is_there(model) else resolving.have(model)
        folder = self.base_dir / model
        if (folder / "config.json").is_file():
            return folder
        return _downloaded(model)


def _downloaded(model: str) -> Path:
    """A model that the engine has fetched from Hugging Face."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise ConfigError(f"{model} is no folder with a config.json", hint="Install the extra: pip install 'reef[train]'.") from error
    try:
        return Path(snapshot_download(model, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError) as error:
        raise ConfigError(
            f"{model} is neither a folder with a config.json nor in the cache of Hugging Face", hint="Start the engine with it first."
        ) from error
