"""A run is told alike whichever dialect its agent spoke."""

from __future__ import annotations

from typing import Any

import pytest

from cordis.trajectory import analyse

MESSAGES = (
    {
        "system": "rules",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Write the date"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hidden", "signature": "s"},
                    {"type": "tool_use", "id": "t", "name": "Write", "input": {"file_path": "d"}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "written"}]},
        ],
    },
    {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "Done."}], "stop_reason": "end_turn"},
)
RESPONSES = (
    {
        "instructions": "rules",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Write the date"}]},
            {"type": "reasoning", "summary": [], "encrypted_content": "hidden"},
            {"type": "function_call", "call_id": "t", "name": "Write", "arguments": '{"file_path": "d"}'},
            {"type": "function_call_output", "call_id": "t", "output": "written"},
        ],
    },
    {"object": "response", "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}]},
)


@pytest.mark.parametrize(("dialect", "bodies"), [("messages", MESSAGES), ("responses", RESPONSES)])
def test_calls_results_and_the_answer_are_told(lab: Any, dialect: str, bodies: tuple[Any, Any]) -> None:
    request, response = bodies
    lab.record([], session="s", dialect=dialect, request={"model": "m", **request}, response=response)
    report = lab.report(session="s", feedback="ISO, please")
    (told,), left_out = analyse([report], store=lab.store, max_sessions=3)
    assert left_out == 0
    assert told.task == "Write the date"
    assert told.transcript.splitlines() == [
        "[user] Write the date",
        '[assistant calls Write] {"file_path": "d"}',
        "[tool] written",
        "[assistant] Done.",
    ]
    assert "hidden" not in told.transcript
    assert told.feedback == ("ISO, please",)


def test_a_prompt_that_is_a_bare_string_is_the_task(lab: Any) -> None:
    lab.record([], session="s", dialect="responses", request={"model": "m", "input": "Write the date"}, response=RESPONSES[1])
    (told,), _ = analyse([lab.report(session="s", feedback="no")], store=lab.store, max_sessions=3)
    assert told.task == "Write the date"
