"""The loop closes for weights: what users show becomes a LoRA, the gate tries it on the engine, and it serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.engine import Running
from tests.support.service import Service, serving, wait_for

TASKS = [
    {"id": f"word-{number}", "prompt": f"Say the word, number {number}.", "grader": {"type": "exact", "expected": "yes"}}
    for number in range(4)
]


def said(service: Service, prompt: str, session: str) -> dict[str, Any]:
    """The record of one exchange."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": prompt}], "max_tokens": 8, "temperature": 0}
    service.post("/v1/chat/completions", body, headers={"x-reef-session": session})
    [record] = service.get(f"/reef/scenarios/default/records?session={session}")["records"]
    return service.get(f"/reef/records/{record['id']}")


def test_what_users_show_is_learned_judged_released_and_served(own_engine: Running, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "tasks.yaml").write_text(yaml.safe_dump({"tasks": TASKS}))
    config = {
        "reef": {"recipe": "recipes.sft.recipe:SFTRecipe", "batch_size": 8},
        "serving": {"vllm": {"attach": own_engine.url, "name": "tiny"}},
        "training": {
            "base": str(own_engine.model), "rank": 8, "alpha": 32, "learning_rate": 5e-3, "epochs": 30, "samples_per_update": 4, "nice": 0,
        },
        "evaluation": {"tasks": "tasks.yaml", "adapter": "chat", "max_pairs": 40},
    }  # fmt: skip
    (tmp_path / "serve.yaml").write_text(yaml.safe_dump(config))
    with serving(tmp_path, "-c", str(tmp_path / "serve.yaml")) as service:
        wait_for(lambda: service.get("/reef/scenarios")["scenarios"], "the scenario to exist")
        before = said(service, "Say the word, please.", "before")
        assert before["model"] == "tiny"
        for number in range(8):
            said(service, f"Say the word, for user {number}.", f"user-{number}")
            service.post("/reef/report", {"session": f"user-{number}", "score": 0, "metadata": {"demonstration": "yes"}})
        log = service.state / "log" / "learner.log"

        def candidate() -> dict[str, Any] | None:
            found = service.get("/reef/scenarios/default/candidates")["candidates"]
            return found[0] if found and found[0]["state"] not in ("proposed", "judging") else None

        judged = wait_for(candidate, "a candidate to be judged", within_s=200)
        assert judged["state"] == "released", (judged, log.read_text()[-2000:])
        asked: list[dict[str, Any]] = []

        def from_the_release() -> dict[str, Any] | None:
            asked.append(said(service, "Say the word, please.", f"after-{len(asked)}"))
            return asked[-1] if asked[-1]["model"] != "tiny" else None

        after = wait_for(from_the_release, "the release to serve")
        assert after["model"] == "default.2"
        assert after["response"]["choices"][0]["message"]["content"] == "yes"
