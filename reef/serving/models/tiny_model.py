"""A tiny random Qwen2 with a tokenizer of its own: what protocol, swap and exactness are tested on. It says nothing sensible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reef.serving.models.folders import complete, extras, quiet, whole

LAYERS, HIDDEN, HEADS, KEY_HEADS, INNER = 2, 128, 4, 2, 256  # heads of 32, the smallest that vLLM takes on CPU
VOCABULARY = 1024
MAX_LENGTH = 4096
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] or [] %}{{ part['text'] if part['type'] == 'text' else '' }}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CORPUS = (
    "The quick brown fox jumps over the lazy dog. Every request is recorded before its last byte leaves.",
    "def add(left: int, right: int) -> int:\n    return left + right\n",
    '{"name": "read_file", "arguments": {"path": "src/main.py", "limit": 100}}',
    "What is the capital of France? The capital of France is Paris. One, two, three: 0123456789.",
)
"""What the tokenizer learns its merges from; any text does, as it falls back to single bytes."""


def tiny(folder: Path, *, seed: int = 0) -> Path:
    """Write the model: the same files for the same seed and versions.

    Args:
        folder: where to; one that is there already is kept as it is if its seed is the same, and refused otherwise.
        seed: of the weights. The tokenizer is always the same.

    Returns:
        The folder, which vLLM and transformers load.

    Raises:
        ConfigError: torch or transformers is not installed, or the folder holds something else.
    """
    origin = f"reef model tiny, seed {seed}"
    if complete(folder, origin=origin):
        return folder
    with extras("a tiny model"):
        import torch
        from transformers import Qwen2Config, Qwen2ForCausalLM
    tokenizer = _tokenizer()
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.2,  # so wide that answers differ from prompt to prompt, and after a swap
    )
    quiet()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    with whole(folder, origin=origin) as temporary:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
    return folder


def _tokenizer() -> Any:
    """Byte-level BPE, so that any text comes back as it was."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(CORPUS, trainer)
    filler = [f"<|reserved_{number}|>" for number in range(VOCABULARY - bpe.get_vocab_size())]
    bpe.add_tokens(filler)  # every id that the model can say is a token
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=None,
        eos_token="<|im_end|>",  # noqa: S106 - no password
        pad_token="<|endoftext|>",  # noqa: S106
        chat_template=CHATML,
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )
