"""The model that is trained: read from its base and parent, read out only where it generated, and written as a checkpoint again."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import orjson
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from reef.config import TrainingConfig
from reef.errors import TrainingError
from reef.training import checkpoint
from reef.training.distributed import Group, whole
from reef.training.job import TrainingJob
from reef.training.microbatches import Reading

_OF_THE_BASE = (checkpoint.MANIFEST, "reef_model.json")
"""Files that say what the base is, and would not be true of what was trained from it."""
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")


@dataclass
class Policy:
    """A causal language model and those of its parameters that are trained."""

    model: Any
    lora: bool
    device: torch.device
    group: Group
    computed_in: torch.dtype | None
    """What products are computed in where the weights are kept more exactly; None: in what they are kept in."""
    trained: dict[str, torch.nn.Parameter] = field(default_factory=dict)

    def read(self, reading: Reading) -> tuple[Tensor, Tensor]:
        """Logits that predict the generated tokens, (B, G, V), and the hidden states below them, without gradient, (B, G, H). In float32.

        The model's head is given no other position, so that logits of a whole sequence exist nowhere.
        """
        states: list[Tensor] = []

        def pick(_head: object, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            hidden_BTH = given[0]
            index_BGH = reading.before_BG.unsqueeze(-1).expand(-1, -1, hidden_BTH.shape[-1])
            states.append(hidden_BTH.gather(1, index_BGH))
            return (states[-1], *given[1:])

        hook = self.model.get_output_embeddings().register_forward_pre_hook(pick)
        try:
            with torch.autocast(self.device.type, dtype=self.computed_in, enabled=self.computed_in is not None):
                told = self.model(input_ids=reading.tokens_BT, attention_mask=reading.attended_BT, use_cache=False)
        finally:
            hook.remove()
        return told.logits.float(), states[0].detach().float()

    @contextlib.contextmanager
    def as_base(self) -> Iterator[None]:
        """The model without its LoRA."""
        with self.model.disable_adapter():
            yield

    def save(self, folder: Path, *, base: Path) -> None:
        """Write what an engine loads. A collective: every rank calls it, the leading one writes."""
        if self.lora:
            self._save_lora(folder, base=base)
        else:
            self._save_full(folder, base=base)

    def _save_lora(self, folder: Path, *, base: Path) -> None:
        from peft import get_peft_model_state_dict

        tensors = whole(get_peft_model_state_dict(self.model, save_embedding_layers=False))
        if not self.group.leads:
            return
        about = self.model.peft_config["default"].to_dict() | {"inference_mode": True, "base_model_name_or_path": base.name}
        text = orjson.dumps(about, default=_plain, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)  # peft's own has the order of sets
        (folder / "adapter_config.json").write_bytes(text)
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})

    def _save_full(self, folder: Path, *, base: Path) -> None:
        tensors = whole(self.model.state_dict())
        if not self.group.leads:
            return
        self.model.save_pretrained(folder, state_dict=tensors)
        for file in sorted(base.iterdir()):  # the tokenizer, its chat template and what else an engine reads
            if file.is_file() and not file.name.endswith(_WEIGHTS) and file.name not in _OF_THE_BASE and not (folder / file.name).exists():
                shutil.copyfile(file, folder / file.name)


def open_policy(job: TrainingJob, *, group: Group) -> Policy:
    """The policy to be trained: the parent, or the base with nothing learned yet.

    Raises:
        TrainingError: base and parent are not what the method needs.
    """
    settings, parent = job.settings, job.parent
    lora = settings.method == "lora"
    if parent is not None and checkpoint.is_lora(parent) != lora:
        found = "a LoRA" if not lora else "a whole model"
        raise TrainingError(
            f"the parent {parent} is {found}, and training.method is {settings.method}", hint="Set training.method to match."
        )
    device = default_device()
    dtype = getattr(torch, settings.dtype) if lora else torch.float32  # small updates vanish in weights that are kept in bfloat16
    model = open_model(job.base if lora or parent is None else parent, dtype=dtype, device=device)
    if lora:
        model = _with_lora(model, settings, parent)
    elif settings.freeze_embedding:
        model.get_input_embeddings().requires_grad_(False)
    group.shard(model)
    policy = Policy(model, lora, device, group, torch.bfloat16 if settings.dtype == "bfloat16" and not lora else None)
    policy.trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not policy.trained:
        raise TrainingError(
            "the model has no parameter to train", hint="Set training.freeze_embedding to false, or other training.targets."
        )
    return policy


def open_frozen(folder: Path, *, policy: Policy, dtype: str) -> Policy:
    """Another model that stays as it is: a teacher, or what the policy was before any training."""
    model = open_model(folder, dtype=getattr(torch, dtype), device=policy.device)
    model.requires_grad_(False)
    policy.group.shard(model)
    return Policy(model, False, policy.device, policy.group, None)


def open_model(folder: Path, *, dtype: torch.dtype, device: torch.device) -> Any:
    """A causal language model of a folder in the form of Hugging Face. In the mode without dropout: it must say what the engine would."""
    from transformers import AutoModelForCausalLM

    try:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    except (OSError, ValueError) as error:
        raise TrainingError(f"the model in {folder} cannot be loaded: {error}", hint="It needs config.json and safetensors.") from error
    return model.to(device).eval()


def default_device() -> torch.device:
    """This rank's GPU, or the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def logprobs(logits_BGV: Tensor, ids_BG: Tensor) -> Tensor:
    """Natural log-probabilities of tokens, (B, G)."""
    return -cross_entropy(logits_BGV.flatten(0, 1), ids_BG.flatten(), reduction="none").view_as(ids_BG)


def _with_lora(model: Any, settings: TrainingConfig, parent: Path | None) -> Any:
    from peft import LoraConfig, PeftModel, get_peft_model

    if parent is not None:
        return PeftModel.from_pretrained(model, str(parent), is_trainable=True)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=cast(Any, settings.alpha),  # declared an int, and a float is as good
        target_modules=list(settings.targets) or "all-linear",
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    try:
        return get_peft_model(model, config)
    except ValueError as error:
        raise TrainingError(f"no LoRA fits the model: {error}", hint="See training.targets.") from error


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    return str(getattr(value, "value", value))
