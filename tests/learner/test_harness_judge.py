"""A harness is judged with the weights that its head serves, and by no run of others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "evaluation"))

from episodes import LocalRunner

from reef import config as configuration
from reef.artifacts.repository import ArtifactRepository
from reef.artifacts.tree import content_id
from reef.config import Config
from reef.errors import InvalidTree
from reef.evaluation.execution import Execution, LocalExecution
from reef.experience.database import connect, create_tables
from reef.experience.store import ExperienceStore
from reef.harness.tree import starter
from reef.learner.chat_runner import ChatRunner
from reef.learner.harness_judge import HarnessJudge
from reef.releases.controller import Controller
from reef.releases.imports import bring_in
from reef.types import Component, File, Verdict

TASKS = [
    {"id": f"t{number}", "prompt": f"Do {number}", "grader": {"type": "exact", "expected": "done"}, "split": split}
    for number, split in enumerate(["search", "search", "heldout", "heldout"])
]


class Judge(HarnessJudge):
    """Runs its trials in this process."""

    runner = LocalRunner(lambda rules, _prompt, _call: "done" if "well" in rules else "undone")

    def _execution(self, scenario: str, progress: object) -> Execution:
        return LocalExecution(runner=self.runner, model=None, workers=1)


class House:
    """A chain, and a judge of its candidates."""

    def __init__(self, folder: Path) -> None:
        (folder / "tasks.yaml").write_text(yaml.safe_dump({"tasks": TASKS}))
        self.config: Config = configuration.load(
            evaluation={"tasks": str(folder / "tasks.yaml"), "max_pairs": 30}, storage={"dir": str(folder / "state")}
        )
        engine = connect(f"sqlite:///{folder / 'reef.db'}")
        create_tables(engine)
        self.controller = Controller(engine, ArtifactRepository(folder / "artifacts.git"))
        self.controller.ensure_scenario("default", starter={"AGENTS.md": File(b"start")})
        self.judge = Judge(config=self.config, controller=self.controller, store=ExperienceStore(engine))

    def verdict(self, rules: str) -> Verdict:
        """Of a candidate with these rules, which is settled with it."""
        head, tree = self.controller.head("default"), {"AGENTS.md": File(rules.encode())}
        commit = self.controller.artifacts.commit(tree, message=rules)
        candidate = self.controller.open_candidate(
            scenario="default", component=Component.HARNESS, recipe="test", base_step=head.step, branch=f"candidates/default/{rules}",
            commit=commit, content_id=content_id(tree), summary=rules, reports=(),
        )  # fmt: skip
        verdict = self.judge.judge(
            candidate, tree=tree, head=head, head_tree=self.controller.tree("default", head.step), progress=lambda _line: None
        )
        self.controller.settle(candidate, verdict, expected_head=head.step)
        return verdict


def remembered(verdict: Verdict) -> int:
    return sum(trial.cached for trial in verdict.trials)


@pytest.mark.parametrize("new_weights", [False, True], ids=["the-same-weights", "other-weights"])
def test_runs_of_the_head_with_other_weights_are_not_remembered(tmp_path: Path, *, new_weights: bool) -> None:
    house = House(tmp_path)
    assert remembered(house.verdict("as-before")) == 0
    if new_weights:
        lora = {"adapter_config.json": File(b"{}"), "adapter_model.safetensors": File(b"x")}
        bring_in(house.controller, "default", Component.MODEL, lora, summary="A LoRA")
        assert house.controller.head("default").content_id == house.controller.release("default", 1).content_id
    assert bool(remembered(house.verdict("nor-this"))) is not new_weights


@pytest.mark.parametrize(
    ("adapter", "path", "why"), [("chat", "AGENTS.md", "cannot be judged"), ("rules", "memory/x.md", "read by nobody")]
)
def test_what_no_trial_could_tell_is_refused_before_any(tmp_path: Path, adapter: str, path: str, why: str) -> None:
    house = House(tmp_path)
    config = configuration.load(evaluation={"adapter": adapter}, storage={"dir": str(tmp_path / "state")})
    judge = HarnessJudge(config=config, controller=house.controller, store=house.judge._store)
    base = starter()
    with pytest.raises(InvalidTree, match=why):
        judge.admit({**base, path: File(b"Be brief.\n")}, base=base)


def test_where_rules_are_the_system_message_a_change_of_them_is_let_in(tmp_path: Path) -> None:
    house, base = House(tmp_path), starter()
    config = configuration.load(evaluation={"adapter": "rules"}, storage={"dir": str(tmp_path / "state")})
    judge = HarnessJudge(config=config, controller=house.controller, store=house.judge._store)
    changed = {**base, "AGENTS.md": File(b"Be brief.\n")}
    judge.admit(changed, base=base)
    asked: list[object] = []

    class Model:
        def ask(self, messages: object, *, purpose: str) -> str:
            asked.append(messages)
            return "yes"

    for told in (True, False):
        runner = ChatRunner(lambda _scenario: Model(), rules=told)  # type: ignore[arg-type,return-value]
        with runner.run(changed, prompt="Well?", files={}, scenario="default", session="s", release=None) as episode:
            assert episode.answer == "yes"
    user = {"role": "user", "content": "Well?"}
    assert asked == [[{"role": "system", "content": "Be brief."}, user], [user]]
