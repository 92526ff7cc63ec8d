"""The same model in the Responses and Messages dialects, through the official SDKs, and with what agents say in the user's place."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from reef.rehearsal import messages, responses
from reef.rehearsal.agent import next_step
from reef.rehearsal.conversation import understand
from reef.rehearsal.wire import Reply

SUM = "Write the sum of 19 and 23 to sum.txt"
DATE = "Write the date 7 March 2024 to date.txt"
ISO = "Dates must be written as YYYY-MM-DD."
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"file_path": {"type": "string"}, "content": {"type": "string"}}}
WRITE: Any = {"name": "Write", "input_schema": SCHEMA}
SKILL: Any = {"name": "Skill", "input_schema": {"type": "object", "properties": {"skill": {"type": "string"}}}}
EXEC: Any = {"type": "function", "name": "exec_command", "strict": False, "parameters": {"type": "object", "properties": {"cmd": {}}}}


@pytest.fixture(scope="session")
def claude(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="none", max_retries=0, timeout=20) as client:
        yield client


def test_a_response_with_a_call_arrives_whole_and_streamed_alike(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="m", input=SUM, tools=[EXEC])
    (call,) = whole.output
    assert call.type == "function_call" and json.loads(call.arguments) == {"cmd": "printf %s '42\n' > sum.txt"}
    assert whole.status == "completed" and whole.usage and whole.usage.input_tokens > 0
    with client.responses.stream(model="m", input=SUM, tools=[EXEC]) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_response()
    assert streamed.output[0].arguments == call.arguments  # type: ignore[union-attr]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds.count("response.function_call_arguments.delta") > 1
    assert kinds[-3:] == ["response.function_call_arguments.done", "response.output_item.done", "response.completed"]


def test_streamed_text_of_a_response_is_put_together_by_the_sdk(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="m", input="Who are you?", instructions="Be brief.")
    with client.responses.stream(model="m", input="Who are you?", instructions="Be brief.") as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text == whole.output_text
    assert "rehearsal model" in whole.output_text and whole.model == "rehearsal-1"
    assert (
        kinds.index("response.content_part.added") < kinds.index("response.output_text.delta") < kinds.index("response.content_part.done")
    )


def test_a_result_in_a_response_request_ends_the_task(client: openai.OpenAI) -> None:
    first = client.responses.create(model="m", input=[{"role": "user", "content": SUM}], tools=[EXEC])
    done: Any = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": ""}  # type: ignore[union-attr]
    history: Any = [{"role": "user", "content": SUM}, first.output[0].model_dump(exclude_none=True), done]
    assert client.responses.create(model="m", input=history, tools=[EXEC]).output_text == "Wrote sum.txt. (rehearsal model)"


def test_a_message_with_a_call_arrives_whole_and_streamed_alike(claude: anthropic.Anthropic) -> None:
    asked: Any = {"model": "m", "max_tokens": 100, "tools": [WRITE], "messages": [{"role": "user", "content": SUM}]}
    whole = claude.messages.create(**asked)
    (call,) = whole.content
    assert call.type == "tool_use" and call.input == {"file_path": "sum.txt", "content": "42\n"} and whole.stop_reason == "tool_use"
    with claude.messages.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_message()
    assert streamed.content[0].input == call.input and streamed.stop_reason == "tool_use"  # type: ignore[union-attr]
    assert streamed.usage.output_tokens == whole.usage.output_tokens and streamed.usage.input_tokens > 0
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "File created"}]}
    more: Any = [*asked["messages"], {"role": "assistant", "content": [call.model_dump()]}, {"role": "user", "content": [result]}]
    last = claude.messages.create(**{**asked, "messages": more})
    assert (last.content[0].text, last.stop_reason) == ("Wrote sum.txt. (rehearsal model)", "end_turn")  # type: ignore[union-attr]


def test_tokens_are_counted_and_the_root_has_a_head(claude: anthropic.Anthropic, url: str) -> None:
    assert claude.messages.count_tokens(model="m", messages=[{"role": "user", "content": SUM}]).input_tokens > 5
    with urllib.request.urlopen(urllib.request.Request(url.removesuffix("/v1") + "/", method="HEAD"), timeout=10) as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/responses", {"model": "m"}, "input"),
        ("/responses", {"model": "m", "input": [{"role": "wizard", "content": "x"}]}, "role"),
        ("/messages", {"model": "m", "messages": [{"role": "user", "content": "x"}]}, "max_tokens"),
        ("/messages", {"model": "m", "max_tokens": 1, "messages": []}, "messages"),
        ("/messages/count_tokens", {"model": "m"}, "messages"),
    ],
)
def test_bad_input_is_refused_in_the_callers_dialect(url: str, path: str, body: dict[str, Any], says: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(url + path, data=json.dumps(body).encode()), timeout=10)
    error = json.loads(caught.value.read())
    assert caught.value.code == 400 and says in error["error"]["message"]
    assert (error.get("type") == "error") == path.startswith("/messages")


def codex(*items: dict[str, Any], rule: str = "") -> Reply:
    skills = "## Skills\n### Skill roots\n- `r0` = `/reef/config/skills`\n### Available skills\n"
    skills += "- dates: Read this before any task with a date. (file: r0/dates/SKILL.md)\n- other: About ships. (file: r0/other/SKILL.md)\n"
    rules = f"# AGENTS.md instructions\n\n<INSTRUCTIONS>\n{rule or 'Be kind.'}\n</INSTRUCTIONS>"
    around = "<environment_context>\n  <cwd>/reef/work</cwd>\n</environment_context>"
    start = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": skills}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text} for text in (rules, around)]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": DATE}]},
    ]
    return next_step(understand(responses.parse({"model": "m", "input": [*start, *items], "tools": [EXEC, {"type": "web_search"}]})))


def test_what_codex_says_in_the_users_place_is_guidance_and_its_skills_are_read_below_their_root() -> None:
    (read,) = codex().calls
    assert read.arguments == {"cmd": "cat /reef/config/skills/dates/SKILL.md"}
    call = {"type": "function_call", "name": "exec_command", "arguments": json.dumps(dict(read.arguments)), "call_id": "c1"}
    for text, rule, date in ((ISO, "", "2024-03-07"), ("Nothing.", "", "03/07/2024"), ("Nothing.", ISO, "2024-03-07")):
        (write,) = codex(call, {"type": "function_call_output", "call_id": "c1", "output": text}, rule=rule).calls
        assert write.arguments == {"cmd": f"printf %s '{date}\n' > date.txt"}


def claude_code(*more: dict[str, Any], rule: str = "") -> Reply:
    around = (
        "# Environment\n - Primary working directory: /reef/work\n\nThe following skills are available for use with the Skill tool:\n\n"
    )
    around += "- dates: Read this before any task with a date.\n- other: About ships.\n"
    said = [f"<system-reminder>\nContents of CLAUDE.md:\n\n{rule or 'Be kind.'}\n</system-reminder>", DATE]
    start = [
        {"role": "user", "content": [{"type": "text", "text": text} for text in said]},
        {"role": "system", "content": around},
    ]
    body = {"model": "m", "max_tokens": 9, "system": "You are an agent.", "messages": [*start, *more], "tools": [WRITE, SKILL]}
    return next_step(understand(messages.parse(body)))


def test_what_claude_code_says_in_the_users_place_is_guidance_and_its_skills_are_called_for() -> None:
    (read,) = claude_code().calls
    assert (read.name, read.arguments) == ("Skill", {"skill": "dates"})
    called = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "Skill", "input": dict(read.arguments)}]}
    for text, rule, date in ((ISO, "", "2024-03-07"), ("Nothing.", "", "03/07/2024"), ("Nothing.", ISO, "2024-03-07")):
        body = {"type": "text", "text": f"Base directory for this skill: /reef/config/skills/dates\n\n{text}"}
        result = {"type": "tool_result", "tool_use_id": "t1", "content": "Launching skill: dates"}
        (write,) = claude_code(called, {"role": "user", "content": [result, body]}, rule=rule).calls
        assert write.arguments == {"file_path": "/reef/work/date.txt", "content": f"{date}\n"}
