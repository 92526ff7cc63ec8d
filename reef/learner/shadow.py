"""Has candidates answer recorded traffic, between two steps of learning: a shadow rollout as a whole, or a session that a person asked for.

A harness is given the first question of a session in an empty workspace, as a trial is. Weights and a routing policy are given the
recorded requests as they were sent, through the gateway with the token of trials; whatever tools they call, nothing is carried out.
Nothing here moves a head. What was being answered when the learner died is begun again.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import structlog

from reef.errors import Conflict, GraderFault, NotFound, ReefError, UpstreamError
from reef.evaluation import agreement, capture
from reef.evaluation.ray_execution import Tools
from reef.evaluation.tasks import grader_for
from reef.experience import jsontext, telling
from reef.experience.store import ExperienceStore
from reef.learner.loop import Activity
from reef.releases import replays, rollout, statements
from reef.releases.publishing import writing
from reef.releases.rollout import Mode, Rollout
from reef.releases.store import ReleaseStore
from reef.serving import policy
from reef.types import Candidate, CandidateState, Component, End, Origin, Record, Task, Tree

log = structlog.get_logger()

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
LOOKED_AT = 20
"""As many times the wanted sessions are looked at for some in which a user asks something."""
MOST_OF_A_SESSION = 1_000
"""Requests of one session that a person wants answered again."""
_MAX_CHARS = 2_000

Answer = dict[str, Any]


class Shadows:
    """Answers what waits.

    Args:
        tasks: those whose graders know a session that they were captured from.
        tools: what runs the coding agent; asked for when it is first needed.
        ask: sends a recorded request again, see :class:`Again`.
        tell: gets every change of activity.
    """

    def __init__(
        self,
        *,
        controller: ReleaseStore,
        store: ExperienceStore,
        tasks: Sequence[Task],
        tools: Callable[[], Tools],
        ask: Callable[[Record, str, str], Record],
        tell: Callable[[Activity], None],
    ) -> None:
        self._controller = controller
        self._store = store
        self._graded = {(task.outcome.get("scenario"), task.outcome["session"]): task for task in tasks if task.outcome.get("session")}
        self._open = tools
        self._tools: Tools | None = None
        self._ask = ask
        self._tell = tell

    def work_once(self) -> bool:
        """Answer the oldest replay that waits, else one shadow; False where there is neither.

        What cannot be answered is answered with the reason, a bug too, before it ends the learner: it is not to come back at each start.
        """
        if (replay := replays.waiting(self._controller)) is not None:
            self._finish(
                lambda finding: replays.answer(self._controller, replay, finding),
                replay.scenario, lambda: [replay.session], candidate=replay.candidate, most=MOST_OF_A_SESSION,
            )  # fmt: skip
            return True
        with self._controller.engine.connect() as connection:
            shadow = next(iter(rollout.under_way(connection, Mode.SHADOW)), None)
        if shadow is None:
            return False
        scenario, plan = shadow.candidate.scenario, shadow.plan
        self._finish(
            lambda finding: self._end(shadow, finding),
            scenario, lambda: self._newest(scenario, plan.sessions), candidate=shadow.candidate.id, most=plan.requests,
        )  # fmt: skip
        return True

    def _end(self, shadow: Rollout, finding: Answer) -> None:
        reason = f"waits for a person after its shadow: {finding['summary']}"
        try:
            with writing(self._controller.engine) as tx:
                statements.move(tx, shadow.candidate.id, CandidateState.HELD, reason, after=(CandidateState.HELD,))
                rollout.end(tx, shadow.candidate.id, finding)
        except Conflict:  # a person did not wait for it
            log.info("nobody waits for the shadow any more", candidate=shadow.candidate.id)

    def _finish(
        self, keep: Callable[[Answer], None], scenario: str, sessions: Callable[[], Sequence[str]], *, candidate: str | None, most: int
    ) -> None:
        """Answer sessions again, and keep what came of it."""
        answers: list[Answer] = []
        try:
            changed = self._controller.candidate(candidate) if candidate else None
            for session in sessions():
                self._tell(Activity(scenario, "replaying", f"session {session} with {candidate or 'the head'}"))
                answers += self._session(scenario, session, candidate=changed, most=most - len(answers))
        except ReefError as problem:
            log.warning("replay broke off", scenario=scenario, candidate=candidate, error=problem.message)
            keep(_finding(answers, error=f"{problem.message} {problem.hint}".strip()))
        except Exception as problem:
            keep(_finding(answers, error=f"{type(problem).__name__}: {problem}"))
            raise
        else:
            keep(_finding(answers))
        self._tell(Activity(scenario, "idle"))

    def _session(self, scenario: str, session: str, *, candidate: Candidate | None, most: int) -> list[Answer]:
        records = [record for record in self._store.session_records(scenario, session) if record.origin is Origin.USER]
        if candidate is not None and Component.HARNESS not in candidate.components:
            whole = [record for record in records if record.end is End.COMPLETE and record.dialect in PATHS]
            return [self._request(record, candidate) for record in whole[: max(0, most)]]
        content = candidate.components[Component.HARNESS] if candidate else self._controller.head(scenario).components["harness"]
        name = f"shadow:{candidate.id if candidate else 'head'}:{session}:{time.time_ns() // 1_000_000:x}"[:128]
        return [self._run(scenario, session, records, tree=self._controller.artifacts.read(content.commit), name=name)]

    def _run(self, scenario: str, session: str, records: Sequence[Record], *, tree: Tree, name: str) -> Answer:
        """A harness at a session's first question."""
        task = self._graded.get((scenario, session))
        prompt = task.prompt if task else capture.question(records)
        if not prompt:
            raise NotFound(f"nobody asks anything in session {session}", hint="Choose another one: `reef sessions` lists them.")
        tools = self._tools = self._tools or self._open()
        told = _answer(session, "run", recorded=capture.final_answer(records))
        files = task.files if task else {}
        with tools.runner.run(tree, prompt=prompt, files=files, scenario=scenario, session=name, release=None) as episode:
            told["candidate"] = episode.answer[:_MAX_CHARS]
            if episode.fault:
                return {
                    **told,
                    "detail": f"{episode.fault} fault: {episode.detail}"[:_MAX_CHARS],
                    "failed": episode.fault == "infrastructure",
                }
            if task is not None:
                try:
                    grader = grader_for(task, model=tools.model_for(scenario))
                    score = grader.grade(task=task, workspace=episode.workspace, answer=episode.answer, run_command=episode.run_command)
                except GraderFault as error:
                    return {**told, "detail": error.message, "failed": True}
                return {**told, "score": score.value, "detail": f"graded {score.value:g}: {score.detail}"[:_MAX_CHARS]}
            same = agreement.plain(episode.answer) == agreement.plain(str(told["recorded"]))
            return {**told, "agrees": same, "detail": "" if same else "other text"}

    def _request(self, record: Record, candidate: Candidate) -> Answer:
        """A recorded request, asked again."""
        before = agreement.said(telling.answer(record))
        told = _answer(record.session or "", record.id, recorded=str(before))
        model = self._model(candidate, record)
        try:
            again = self._ask(record, model, f"shadow:{candidate.id}:{record.session}"[:128])
        except UpstreamError as error:
            return {**told, "detail": error.message[:_MAX_CHARS], "failed": True}
        now = agreement.said(telling.answer(again))
        differs = agreement.difference(before, now)
        return {**told, "candidate": str(now)[:_MAX_CHARS], "agrees": not differs, "detail": differs}

    def _model(self, candidate: Candidate, record: Record) -> str:
        asked = record.request.get("model")
        if (content := candidate.components.get(Component.ROUTING)) is not None:
            found = policy.read(self._controller.artifacts.read(content.commit))
            return found.target(asked, session=record.session or "", body=record.request) or str(asked or "")
        return policy.staged_name(candidate.scenario, candidate.id)

    def _newest(self, scenario: str, wanted: int) -> list[str]:
        """The newest sessions in which a user asks something."""

        def asked() -> Iterator[str]:
            for found in self._store.sessions(scenario, limit=min(200, wanted * LOOKED_AT)).sessions:
                records = self._store.session_records(scenario, found.id)
                if any(record.origin is Origin.USER for record in records) and capture.question(records):
                    yield found.id

        return [session for session, _ in zip(asked(), range(wanted), strict=False)]


class Again:
    """Sends a recorded request again, as a trial.

    Args:
        url: the gateway's address.
        token: of trials.
    """

    def __init__(self, store: ExperienceStore, *, url: str, token: str, timeout_s: float) -> None:
        self._store = store
        self._url = url
        self._token = token
        self._timeout_s = timeout_s

    def __call__(self, record: Record, model: str, session: str) -> Record:
        """The record of the new exchange.

        Raises:
            UpstreamError: there was no whole answer.
        """
        headers = {"content-type": "application/json", "x-reef-scenario": record.scenario, "x-reef-session": session}
        headers["authorization"] = f"Bearer {self._token}"
        body = jsontext.dumps({**record.request, "model": model})
        request = urllib.request.Request(self._url + PATHS[record.dialect], body, headers)  # noqa: S310 - our own gateway
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:  # noqa: S310
                answer.read()
                receipt = answer.headers["x-reef-agent-record-id"]
        except urllib.error.HTTPError as error:
            with error:
                raise UpstreamError(f"{model}: {_message(error.read(65_536))}") from None
        except OSError as error:
            raise UpstreamError(f"{model}: {error}") from error
        again = self._store.record(receipt)
        if again.end is not End.COMPLETE:
            raise UpstreamError(f"{model}: the answer ended as {again.end}")
        return again


def _answer(session: str, what: str, *, recorded: str) -> Answer:
    return {
        "session": session, "what": what, "recorded": recorded[:_MAX_CHARS], "candidate": None, "agrees": None, "score": None,
        "detail": "", "failed": False,
    }  # fmt: skip


def _finding(answers: Sequence[Answer], *, error: str = "") -> Answer:
    return {"summary": _summary(answers, error), "answers": list(answers), "error": error}


def _summary(answers: Sequence[Answer], error: str) -> str:
    """A line for people."""
    compared = [answer["agrees"] for answer in answers if answer["agrees"] is not None]
    graded = [answer["score"] for answer in answers if answer["score"] is not None]
    faults = sum(answer["agrees"] is None and answer["score"] is None and not answer["failed"] for answer in answers)
    failed = sum(answer["failed"] for answer in answers)
    parts = [f"the same answer in {sum(compared)} of {len(compared)}"] if compared else []
    parts += [f"graded {sum(graded) / len(graded):.2f} on average of {len(graded)}"] if graded else []
    parts += [f"{faults} faults of the harness"] if faults else []
    parts += [f"{failed} without an answer"] if failed else []
    parts += [f"it broke off: {error}"] if error else []
    return ", ".join(parts) or "there was nothing to answer"


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:300]
