"""A recipe says what its reports must hold, and others are refused at the door. No report counts twice."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import Answer, Service, service
from tests.support.upstream import FakeUpstream

RECIPES = """
import enum
from typing import Literal
from pydantic import BaseModel, Field
from reef.learner.recipe import RecordOnly


class Stars(BaseModel):
    stars: int = Field(ge=1, le=5)
    language: Literal["de", "en"] = "en"


class Graded(BaseModel, extra="forbid"):
    score: float = Field(ge=0, le=1)
    feedback: Stars


class ByModel(RecordOnly):
    report_schema = Graded


class BySchema(RecordOnly):
    report_schema = {
        "type": "object",
        "required": ["feedback"],
        "properties": {"score": {"maximum": 1}, "feedback": {"type": "object", "properties": {"stars": {"type": "integer"}}}},
    }


class Anything(RecordOnly):
    pass


class BadSchema(RecordOnly):
    report_schema = {"type": "objekt"}
"""


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"recipes_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(RECIPES)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def told(gateway: Service, receipt: str, **body: Any) -> Answer:
    return gateway.request("POST", "/reef/report", {"references": [receipt], **body})


@pytest.mark.parametrize("recipe", ["ByModel", "BySchema"])
def test_a_report_of_another_form_is_refused_with_the_field_named(tmp_path: Path, fake: FakeUpstream, recipes: str, recipe: str) -> None:
    with service(tmp_path, upstream=fake.url, reef={"recipe": f"{recipes}:{recipe}"}) as gateway:
        receipt = gateway.chat().receipt
        assert told(gateway, receipt, score=0.5, feedback={"stars": 3, "more": None}).status == 201
        assert told(gateway, receipt, score=1, feedback={"stars": 5}).status == 201
        refused: list[tuple[dict[str, Any], str]] = [
            ({"score": 1}, "feedback"),
            ({"score": 2, "feedback": {"stars": 3}}, "score: "),
            ({"score": 1, "feedback": {"stars": "3"}}, "feedback.stars: "),
            ({"score": 1, "feedback": "good"}, "feedback: "),
        ]
        for body, said in refused:
            answer = told(gateway, receipt, **body)
            assert (answer.status, answer.error["type"]) == (422, "invalid_request_error")
            assert said in answer.error["message"]
            assert recipe in answer.error["hint"]
        assert gateway.store.counts()["reports"] == 2
        assert gateway.request("GET", "/reef/status").json["reports"] == {"unchecked_because": ""}


def test_a_model_that_forbids_others_names_them(tmp_path: Path, fake: FakeUpstream, recipes: str) -> None:
    with service(tmp_path, upstream=fake.url, reef={"recipe": f"{recipes}:ByModel"}) as gateway:
        receipt = gateway.chat().receipt
        answer = told(gateway, receipt, score=1, feedback={"stars": 3}, metadata={"a": 1})
        assert (answer.status, answer.error["message"]) == (422, "metadata: unknown field")
        assert "feedback.language" in told(gateway, receipt, score=1, feedback={"stars": 3, "language": "fr"}).error["message"]


def test_a_recipe_that_says_nothing_takes_anything(tmp_path: Path, fake: FakeUpstream, recipes: str) -> None:
    with service(tmp_path, upstream=fake.url, reef={"recipe": f"{recipes}:Anything"}) as gateway:
        assert told(gateway, gateway.chat().receipt, feedback=["any", {"thing": 1}]).status == 201


@pytest.mark.parametrize(("recipe", "said"), [("Missing", "PluginError"), ("BadSchema", "SchemaError")])
def test_a_broken_recipe_is_reported_and_reports_are_kept(tmp_path: Path, fake: FakeUpstream, recipes: str, recipe: str, said: str) -> None:
    with service(tmp_path, upstream=fake.url, reef={"recipe": f"{recipes}:{recipe}"}) as gateway:
        assert told(gateway, gateway.chat().receipt, score=5).status == 201
        assert said in gateway.request("GET", "/reef/status").json["reports"]["unchecked_because"]
        assert gateway.chat().status == 200


def test_the_gateway_loads_no_recipe_until_a_report_comes(tmp_path: Path, recipes: str) -> None:
    heavy = (recipes, "reef.learner.recipe", "jsonschema", "alembic")
    script = f"""
import sys
from reef import config
from reef.gateway.app import create_app
from reef.gateway.state import GatewayState
where = {{"dir": {str(tmp_path / "s")!r}}}
loaded = config.load(upstream={{"url": "http://127.0.0.1:1/v1"}}, storage=where, reef={{"recipe": "{recipes}:ByModel"}})
create_app(GatewayState.build(loaded))
print([name for name in {heavy} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2])
    assert done.stdout == "[]\n", done.stderr


def test_repeated_and_simultaneous_reports_count_once(gateway: Service) -> None:
    receipt = gateway.chat().receipt
    body = {"agent_record_id": "mine", "references": [receipt], "score": 0}
    answers: list[Answer] = []
    threads = [threading.Thread(target=lambda: answers.append(gateway.request("POST", "/reef/report", body))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.status for answer in answers) == [200] * 7 + [201]
    assert [report.id for report in gateway.store.unconsumed_reports("default", "cordis")] == ["mine"]


def test_a_report_repeated_after_it_was_consumed_is_not_learned_from_again(gateway: Service) -> None:
    receipt = gateway.chat().receipt
    body = {"agent_record_id": "mine", "references": [receipt], "score": 0}
    assert gateway.request("POST", "/reef/report", body).status == 201
    gateway.state.controller.consume("default", "cordis", ["mine"])
    again = gateway.request("POST", "/reef/report", body)
    assert (again.status, again.json["created"]) == (200, False)
    assert gateway.store.unconsumed_reports("default", "cordis") == []
    line = {"kind": "report", "id": "mine", "references": [receipt], "score": 0}
    assert gateway.request("POST", "/reef/records/batch", [line]).json["there"]["reports"] == 1
    assert gateway.store.unconsumed_reports("default", "cordis") == []


def test_the_order_of_references_and_the_kind_of_number_are_not_content(gateway: Service) -> None:
    one, two = gateway.chat().receipt, gateway.chat().receipt
    body = {"agent_record_id": "mine", "references": [two, one], "score": 1}
    assert gateway.request("POST", "/reef/report", body).status == 201
    assert gateway.request("POST", "/reef/report", {**body, "references": [one, two, one], "score": 1.0}).status == 200
    assert gateway.request("POST", "/reef/report", {**body, "references": [one]}).status == 409


def test_a_late_report_must_still_quote_records_of_its_scenario(gateway: Service) -> None:
    receipt = gateway.chat(x_reef_scenario="one").receipt
    answer = gateway.request("POST", "/reef/report", {"references": [receipt], "score": 1}, {"x-reef-scenario": "two"})
    assert (answer.status, answer.error["type"]) == (404, "not_found_error")
    assert gateway.request("POST", "/reef/report", {"references": [receipt], "score": 1}, {"x-reef-scenario": "one"}).status == 201
