"""The server speaks the OpenAI dialect, to the official SDK and byte by byte."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Any

import openai
import pytest

from reef.config import Config, RehearsalConfig
from reef.errors import ConfigError
from reef.rehearsal.app import create_app

WRITE = {
    "type": "function",
    "function": {"name": "write", "parameters": {"type": "object", "properties": {"path": {}, "content": {}}}},
}
SUM = [{"role": "user", "content": "Write the sum of 17 and 25 to sum.txt"}]


def post(url: str, body: bytes, path: str = "/chat/completions") -> tuple[int, bytes]:
    request = urllib.request.Request(url + path, data=body, headers={"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_a_tool_call_arrives_whole(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="m", messages=SUM, tools=[WRITE])
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("write", {"path": "sum.txt", "content": "42\n"})
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.content is None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_streamed_tool_call_is_put_together_by_the_sdk_as_the_whole_one(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="m", messages=SUM, tools=[WRITE])
    with client.chat.completions.stream(model="m", messages=SUM, tools=[WRITE], stream_options={"include_usage": True}) as stream:
        streamed = stream.get_final_completion()
    assert streamed.choices[0].message.tool_calls[0].function.name == "write"
    assert streamed.choices[0].message.tool_calls[0].function.arguments == whole.choices[0].message.tool_calls[0].function.arguments
    assert streamed.choices[0].finish_reason == "tool_calls"
    assert streamed.usage.prompt_tokens > 0


def test_streamed_text_is_split_and_complete(client: openai.OpenAI) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    whole = client.chat.completions.create(model="m", messages=question).choices[0].message.content
    chunks = list(client.chat.completions.create(model="m", messages=question, stream=True))
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content]
    assert len(pieces) > 5
    assert "".join(pieces) == whole
    assert [chunk.choices[0].finish_reason for chunk in chunks][-2:] == [None, "stop"]
    assert all(chunk.usage is None for chunk in chunks), "usage comes only when it is asked for"


def test_events_come_in_the_order_servers_send_them(url: str) -> None:
    body = {"messages": SUM, "tools": [WRITE], "stream": True, "stream_options": {"include_usage": True}}
    status, raw = post(url, json.dumps(body).encode())
    events = raw.decode().split("\n\n")
    assert (status, events[-2:]) == (200, ["data: [DONE]", ""])
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    opening = deltas[1]["tool_calls"][0]
    assert (opening["index"], opening["type"], opening["function"]) == (0, "function", {"name": "write", "arguments": ""})
    arguments = [delta["tool_calls"][0]["function"]["arguments"] for delta in deltas[2:-1]]
    assert len(arguments) > 1
    assert json.loads("".join(arguments)) == {"path": "sum.txt", "content": "42\n"}
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_the_same_request_gets_the_same_bytes_and_another_one_other_ids(url: str) -> None:
    first, again = (post(url, json.dumps({"messages": SUM}).encode()) for _ in range(2))
    other = post(url, json.dumps({"messages": SUM, "user": "b"}).encode())
    assert first == again
    assert json.loads(first[1])["id"] != json.loads(other[1])["id"]


def test_it_never_passes_for_a_model(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "Who are you?"}])
    assert answer.model == "rehearsal-1"
    assert "rehearsal model" in answer.choices[0].message.content
    assert [model.id for model in client.models.list()] == ["rehearsal-1"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "the body"),
        (b"{}", "messages"),
        (b'{"messages": []}', "messages"),
        (b'{"messages": [{"role": "wizard", "content": "x"}]}', "messages.0.role"),
        (b'{"messages": [{"role": "user", "content": 7}]}', "messages.0.content"),
        (b'{"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]}', "tools.0.function"),
        (b'{"messages": [{"role": "user", "content": "x"}], "n": 2}', "n"),
    ],
)
def test_bad_input_is_refused_in_the_openai_shape(url: str, body: bytes, says: str) -> None:
    status, raw = post(url, body)
    error = json.loads(raw)["error"]
    assert status == 400
    assert says in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"


def test_the_sdk_raises_its_own_error_for_bad_input(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="messages"):
        client.chat.completions.create(model="m", messages=[])


def test_unknown_paths_and_methods_are_errors_in_the_openai_shape(url: str) -> None:
    status, raw = post(url, b"{}", path="/embeddings")
    assert (status, json.loads(raw)["error"]["type"]) == (404, "invalid_request_error")
    status, raw = post(url, b"{}", path="/models")
    assert (status, "error" in json.loads(raw)) == (405, True)


@pytest.mark.parametrize("script", [(), ("useful", "brilliant")])
def test_a_script_that_cannot_be_played_is_refused_at_the_start(script: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"rehearsal\.proposals"):
        create_app(RehearsalConfig(proposals=script))


def start(environment: dict[str, str], **options: Any) -> subprocess.Popen[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("REEF_")}
    command = [sys.executable, "-m", "reef.rehearsal"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env={**inherited, **environment}, stdout=pipe, stderr=pipe, text=True, **options)


def test_the_process_serves_the_socket_it_is_given_and_ends_with_its_parent() -> None:
    alive_read, alive_write = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        environment = {
            "REEF_CONFIG": Config().model_dump_json(),
            "REEF_LISTEN_FD": str(listener.fileno()),
            "REEF_PARENT_FD": str(alive_read),
        }
        process = start(environment, pass_fds=(listener.fileno(), alive_read))
        try:
            status, raw = post(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", json.dumps({"messages": SUM}).encode())
            assert (status, json.loads(raw)["model"]) == (200, "rehearsal-1")
            os.close(alive_write)
            assert process.wait(20) == 0
        finally:
            process.kill()
            process.communicate()
            os.close(alive_read)


def test_by_hand_the_process_prints_where_it_listens() -> None:
    process = start({})
    try:
        url = process.stdout.readline().strip()
        assert post(url, json.dumps({"messages": SUM}).encode())[0] == 200
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.mark.parametrize("environment", [{"REEF_PORT": "many"}, {"REEF_PORT": "99999"}, {"REEF_CONFIG": "{"}])
def test_a_wrong_environment_is_told_in_one_line(environment: dict[str, str]) -> None:
    _, said = start(environment).communicate(timeout=20)
    assert said.startswith("reef.rehearsal: ")
    assert "Traceback" not in said
