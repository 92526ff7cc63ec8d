"""The loop closes for full weights: what users show is trained into the whole model, and an engine of its own tries it before it serves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.serving.engine.test_full_weights import engine
from tests.serving.engine.test_learning import TASKS, said
from tests.support.engine import START_S, Running, marked
from tests.support.service import Service, serving, wait_for

__all__ = ["engine"]


def log_probabilities(record: dict[str, Any]) -> list[float]:
    return [token["logprob"] for token in record["response"]["choices"][0]["logprobs"]["content"]]


def asked(service: Service, session: str) -> dict[str, Any]:
    """The record of one exchange, its log-probabilities in it."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Say the word, please."}],
        "max_tokens": 8,
        "temperature": 0,
        "logprobs": True,
    }
    service.post("/v1/chat/completions", body, headers={"x-reef-session": session})
    [record] = service.get(f"/reef/scenarios/default/records?session={session}")["records"]
    return service.get(f"/reef/records/{record['id']}")


def until_served_by(service: Service, name: str) -> dict[str, Any]:
    """An answer of the weights of this name; until they are there, those before them answer, and no others."""
    numbers: Iterator[int] = iter(range(100_000))

    def by_it() -> dict[str, Any] | None:
        record = asked(service, f"{name}-{next(numbers)}")
        return record if record["response"]["model"] == name else None

    return wait_for(by_it, f"{name} to serve", within_s=120)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_full_weights_are_learned_judged_on_an_engine_of_their_own_released_served_and_rolled_back(engine: Running, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "tasks.yaml").write_text(yaml.safe_dump({"tasks": TASKS}))
    config = {
        "reef": {"recipe": "recipes.sft.recipe:SFTRecipe", "batch_size": 8},
        "serving": {"vllm": {"attach": engine.url, "name": "tiny", "dtype": "float32", "max_model_len": 1024, "judge_engine": {"nice": 0}}},
        "training": {
            "base": str(engine.model), "method": "full", "learning_rate": 2e-3, "epochs": 30, "samples_per_update": 4, "nice": 0,
            "freeze_embedding": False,
        },
        "evaluation": {"tasks": "tasks.yaml", "adapter": "chat", "max_pairs": 40},
    }  # fmt: skip
    (tmp_path / "serve.yaml").write_text(yaml.safe_dump(config))
    with serving(tmp_path, "-c", str(tmp_path / "serve.yaml"), environment={"OMP_NUM_THREADS": "1"}) as service:
        run = service.state / "judge" / "run"
        wait_for(lambda: service.get("/reef/scenarios")["scenarios"], "the scenario to exist")
        before = asked(service, "before")
        assert before["response"]["model"] == "tiny"
        for number in range(8):
            said(service, f"Say the word, for user {number}.", f"user-{number}")
            service.post("/reef/report", {"session": f"user-{number}", "score": 0, "metadata": {"demonstration": "yes"}})
        wait_for(lambda: marked(run), "the engine of the candidate to be started", within_s=400)
        assert "judge_engine" in service.get("/reef/status")
        listed = {model["id"] for model in service.get("/v1/models")["data"]}
        assert listed == {"tiny"}  # nothing tells users of it
        log = service.state / "log" / "learner.log"

        def candidate() -> dict[str, Any] | None:
            found = service.get("/reef/scenarios/default/candidates")["candidates"]
            return found[0] if found and found[0]["state"] not in ("proposed", "judging") else None

        judged = wait_for(candidate, "a candidate to be judged", within_s=START_S + 400)
        assert judged["state"] == "released", (judged, log.read_text()[-2000:])
        after = until_served_by(service, "default.2")
        assert after["response"]["choices"][0]["message"]["content"] == "yes"
        wait_for(lambda: not marked(run), "the engine of the candidate to end", within_s=60)
        wait_for(lambda: service.get("/reef/status").get("weights", {}).get("state") == "serving", "the status to tell")
        service.post("/reef/scenarios/default/rollback", {"step": 1})
        back = until_served_by(service, "tiny")
        assert log_probabilities(back) == log_probabilities(before)
        service.post("/reef/scenarios/default/rollback", {"step": 2})
        assert log_probabilities(until_served_by(service, "default.4")) == log_probabilities(after)
    wait_for(lambda: not marked(run), "nothing of it to be left", within_s=60)
