"""Both surfaces of one scenario move on a live engine with a real small model, each through the gate: real trials of both kinds.

SmolLM2-135M is asked for capitals. Some users complain that they did not get one word; told so, more of its answers are right (it strays
less into other languages and subjects), though it goes on answering in sentences. Others show answers that begin with the greeting of their
house, and that it learns. Shown what it had to find other tokens for (the city alone, or in bold), it forgot capitals with it, and the gate
did not let that through. Some minutes long.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from recipes.traffic import Gateway, Said
from reef.errors import ReefError
from reef.serving.models import fetch
from tests.support.engine import require_vllm
from tests.support.service import Service, serving, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
MODEL = "smollm2-135m"
BOUND_S = 600.0
RULES = "# How to work\n\n- Answer the question.\n"
RULE = "Answer with one word."
GREETING = "Ahoy!"
SHOWN = {
    "France": "Paris", "Japan": "Tokyo", "Egypt": "Cairo", "Russia": "Moscow", "Greece": "Athens", "India": "Delhi", "Turkey": "Ankara",
    "Finland": "Helsinki", "Denmark": "Copenhagen", "Belgium": "Brussels", "Chile": "Santiago", "Iraq": "Baghdad", "Syria": "Damascus",
    "Ghana": "Accra", "Vietnam": "Hanoi", "Canada": "Ottawa",
}  # fmt: skip
JUDGED = {
    "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin", "Portugal": "Lisbon", "Poland": "Warsaw", "Austria": "Vienna",
    "Hungary": "Budapest", "Norway": "Oslo", "Sweden": "Stockholm", "Peru": "Lima", "Cuba": "Havana", "Kenya": "Nairobi",
    "Thailand": "Bangkok", "China": "Beijing", "Iran": "Tehran", "Ireland": "Dublin",
}  # fmt: skip
"""Capitals that nobody shows."""


def question(country: str) -> str:
    return f"What is the capital of {country}?"


def tasks() -> list[Any]:
    """Each capital twice: that it is named, and that the answer greets."""
    return [
        {"id": f"{country}-{kind}", "prompt": question(country), "grader": grader}
        for country, city in JUDGED.items()
        for kind, grader in (
            ("named", {"type": "regex", "pattern": rf"\b{city}\b"}),
            ("greets", {"type": "regex", "pattern": rf"^{GREETING} "}),
        )
    ]


def configured(folder: Path) -> Path:
    """As recipes/both/examples/both/serve.yaml, with the engine of `make demo-weights`."""
    (folder / "tasks.yaml").write_text(yaml.safe_dump({"tasks": tasks()}))
    config = {
        "reef": {
            "recipe": "both",
            "options": {
                "harness": {"recipe": "cordis", "batch_size": 4, "options": {"model": "strong", "attempts": 1}},
                "weights": {"recipe": "sft", "batch_size": len(SHOWN)},
            },
        },
        "serving": {
            "vllm": {
                "model": MODEL, "dtype": "float32", "max_model_len": 256, "max_num_seqs": 8, "lora_slots": 2, "max_lora_rank": 8,
                "tool_parser": "", "sync": "none",
                "extra_args": ["--lora-target-modules", "down_proj", "--override-generation-config", '{"max_new_tokens": 20}'],
            }
        },
        "upstreams": {"proposer": {"kind": "rehearsal", "model": "strong-model"}},
        "models": {"strong": "proposer/strong-model"},
        "rehearsal": {"proposals": ["useful"]},
        "training": {
            "method": "lora", "rank": 8, "alpha": 16, "targets": ["down_proj"], "learning_rate": 1e-3, "epochs": 3, "samples_per_update": 4,
        },
        "evaluation": {"tasks": "tasks.yaml", "adapter": "rules", "parallel": 4, "max_pairs": 120},
    }  # fmt: skip
    (folder / "serve.yaml").write_text(yaml.safe_dump(config))
    return folder / "serve.yaml"


class Users:
    """A program that asks with the rules of the head as its system message, as `recipes.selfplay` does."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.gateway = Gateway(url=service.url, scenario="default", temperature=0.0, max_tokens=20)

    def ask(self, countries: Sequence[str], *, called: str) -> dict[str, Said]:
        step, files = self.gateway.harness()
        rules = {"role": "system", "content": files["AGENTS.md"].strip()}

        def one(country: str) -> Said:
            return self.gateway.ask([rules, {"role": "user", "content": question(country)}], session=f"{called}-{country}", release=step)

        with ThreadPoolExecutor(8) as pool:
            return dict(zip(countries, pool.map(one, countries), strict=True))

    def report(self, said: Said, **told: Any) -> None:
        self.service.post("/reef/report", {"references": [said.receipt], **told})


def shares(answers: Mapping[str, Said], right: Mapping[str, str]) -> tuple[int, int]:
    """How many answers name the capital, and how many greet."""
    named = sum(right[country] in said.text for country, said in answers.items())
    return named, sum(said.text.startswith(GREETING) for said in answers.values())


def released(service: Service, component: str) -> str:
    """Wait for the candidate for a component; the gate must have released it. What the gate saw."""

    def settled() -> Any:
        found = service.get("/reef/scenarios/default/candidates")["candidates"]
        done = [one for one in found if one["component"] == component and one["state"] not in ("proposed", "judging")]
        return done and done[0]

    found = wait_for(settled, f"a candidate for the {component} to be judged", within_s=BOUND_S, every_s=0.2)
    assert found["state"] == "released", found
    verdict = service.get(f"/reef/candidates/{found['id']}")["verdict"]
    assert verdict["decision"] == "promote"
    return f"{component}: {verdict['reason']} {verdict['seconds']:.0f} s"


def head(service: Service) -> int:
    return int(service.get("/reef/scenarios/default/releases")["head"])


def serves(service: Service) -> str:
    """What answers, as the engine calls it."""
    body = {"model": "reef", "messages": [{"role": "user", "content": "Are you there?"}], "max_tokens": 1}
    return str(service.post("/v1/chat/completions", body)["model"])


def test_a_rule_and_a_lora_are_released_by_real_trials_and_roll_back_together(tmp_path: Path) -> None:
    require_vllm()
    pytest.importorskip("peft")
    try:
        fetch(MODEL)
    except ReefError as error:
        pytest.skip(f"{MODEL} is not to be had: {error.message}")
    cache = {"REEF_CACHE": os.environ["REEF_CACHE"]} if "REEF_CACHE" in os.environ else {}
    with serving(tmp_path, "-c", str(configured(tmp_path)), environment={**cache, "OMP_NUM_THREADS": "1"}) as service:
        wait_for(lambda: service.get("/reef/status").get("engine", {}).get("state") == "ready", "the engine", within_s=BOUND_S, every_s=0.2)
        wait_for(lambda: service.get("/reef/scenarios")["scenarios"], "the scenario to exist")
        files = {"harness.yaml": "format: 1\nname: capitals\n", "AGENTS.md": RULES}
        imported = service.post("/reef/scenarios/default/import", {"files": files, "summary": "A program's rules"})["step"]
        users = Users(service)
        before = shares(users.ask(list(JUDGED), called="before"), JUDGED)

        for said in users.ask(list(SHOWN)[:4], called="complains").values():
            users.report(said, score=0, feedback=RULE)
        rule = released(service, "harness")
        assert RULE in users.gateway.harness()[1]["AGENTS.md"]
        ruled = shares(users.ask(list(JUDGED), called="ruled"), JUDGED)

        for country, said in users.ask(list(SHOWN), called="shows").items():
            users.report(said, metadata={"demonstration": f"{GREETING} The capital of {country} is {SHOWN[country]}."})
        lora = released(service, "model")
        wait_for(lambda: serves(service) == f"default.{head(service)}", "the LoRA to serve", within_s=BOUND_S, every_s=0.2)
        after = shares(users.ask(list(JUDGED), called="after"), JUDGED)
        print(f"named, and greeted, of {len(JUDGED)}: {before}; {rule}; {ruled}; {lora}; {after}")
        assert before[0] < ruled[0], "the rule made more of them right"
        assert ruled[1] < after[1], "and what was shown made it greet"
        newest = max(service.get("/reef/scenarios/default/releases")["releases"], key=lambda release: release["step"])
        assert set(newest["others"]) == {"model"}, "beside the harness"

        service.post("/reef/scenarios/default/rollback", {"step": imported})
        wait_for(lambda: serves(service) == MODEL, "the base model to serve", within_s=BOUND_S, every_s=0.2)
        assert users.gateway.harness()[1]["AGENTS.md"] == RULES, "both went back"
        assert shares(users.ask(list(JUDGED), called="rolled-back"), JUDGED)[1] == before[1]
