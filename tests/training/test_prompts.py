"""Chat prompts as the engine reads them, and the note that only a teacher is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from reef.errors import ConfigError

pytest.importorskip("torch", reason="the extra `train` is not installed")
pytest.importorskip("transformers", reason="the extra `train` is not installed")

from reef.serving.models import tiny
from reef.training.prompts import ChatPrompts, with_note

READ = {"name": "read", "arguments": '{"path": "a.txt"}'}
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Read"}, {"type": "text", "text": "a.txt"}]},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": READ}]},
    {"role": "tool", "tool_call_id": "c1", "content": "nothing"},
]
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("model") / "tiny")


def test_a_prompt_has_the_tokens_of_the_models_own_tokenizer(model: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    messages = [{"role": "user", "content": "Grüße, ¿qué tal? 你好 <|im_end|>"}, {"role": "assistant", "content": "Fine."}]
    told = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert ChatPrompts(model).tokens({"messages": messages}) == tuple(told)


def test_a_template_gets_text_in_one_piece_and_parsed_arguments(model: Path) -> None:
    (model / "chat_template.jinja").write_text(
        "{% for tool in tools %}[{{ tool.function.name }}]{% endfor %}"
        "{% for m in messages %}{{ m.role + ':' + m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments.path }}{% endfor %};"
        "{% endfor %}{% if thinking %}think{% endif %}"
    )
    prompts = ChatPrompts(model)
    tokens = prompts.tokens({"messages": CONVERSATION, "tools": TOOLS, "chat_template_kwargs": {"thinking": True}})
    assert prompts._tokenizer.decode(list(tokens)) == "[read]system:Be brief.;user:Read\na.txt;assistant:a.txt;tool:nothing;think"


def test_an_answer_may_be_a_call_of_a_tool(model: Path, tmp_path: Path) -> None:
    template = tmp_path / "calls.jinja"
    template.write_text(
        "{% for m in messages %}{{ m.role + ':' + m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}"
        "{% endfor %};{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    )
    prompts = ChatPrompts(model, template=template)
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": READ}]}
    request = {"messages": CONVERSATION[:2], "tools": TOOLS}
    assert prompts._tokenizer.decode(list(prompts.tokens(request))) == "system:Be brief.;user:Read\na.txt;assistant:"
    assert prompts._tokenizer.decode(list(prompts.answer(request, call))) == '{"path": "a.txt"};'
    assert prompts._tokenizer.decode(list(prompts.answer(request, "Nothing."))) == "Nothing.;"


def test_a_chat_template_that_is_not_there_is_named(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.jinja cannot be read"):
        ChatPrompts(model, template=tmp_path / "nowhere.jinja")


def test_a_note_stands_at_the_end_of_what_the_user_said_last() -> None:
    told = with_note(CONVERSATION, "Look twice.")
    assert told[1] == {"role": "user", "content": "Read\na.txt\n\nLook twice."}
    assert [*told[:1], *told[2:]] == [*CONVERSATION[:1], *CONVERSATION[2:]]
    assert with_note(CONVERSATION[:1], "Look twice.")[0] == {"role": "system", "content": "Look twice."}


def test_a_model_without_a_chat_template_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):
        ChatPrompts(tmp_path)
