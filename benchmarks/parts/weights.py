"""Weights to be brought into an engine: of a model, variants that differ a little from it, and LoRAs."""

from __future__ import annotations

import shutil
from pathlib import Path

from reef.serving.models import tiny
from reef.serving.sync.held import read_folder


def model_folder(model: str, folder: Path) -> Path:
    """Where the model lies; fetched if it is one of Reef's."""
    if model == "tiny":
        return tiny(folder / "tiny")
    if Path(model).is_dir():
        return Path(model).resolve()
    from reef.serving.models.fetching import fetch

    return fetch(model)


def moved(base: Path, folder: Path, *, seed: int, but: str, by: float = 1e-3) -> Path:
    """The model with every tensor moved a little, but for those whose name holds a word."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    shutil.copytree(base, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.index.json"))
    tensors = {}
    for name, tensor in read_folder(base).items():
        noise = torch.randn(tensor.shape, generator=generator) * by
        tensors[name] = tensor.clone() if but and but in name else (tensor.float() + noise).to(tensor.dtype)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def make_lora(base: Path, folder: Path, *, seed: int) -> Path:
    """A random LoRA of rank 8 on the attention."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    config = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(folder)
    return folder
