"""The audit: is everything that the chain promises still so?

For a scenario, in this order: each release follows the one before it and was not changed, its commit follows the other's in git, the files
of each of its components have the content id that it names, down to the hash of every object and large file; the head is the last one;
the candidates whose bytes are kept have theirs; branches and tags follow. The first thing found is the first break.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from reef.artifacts.reading import Contents, ObjectReader
from reef.artifacts.repository import full_ref
from reef.artifacts.tree import LargeFile
from reef.errors import ReefError
from reef.releases import chain, mirror
from reef.releases.store import ReleaseStore
from reef.types import Content, Release

_ATTEMPTS = 3


@dataclass
class Audit:
    """One audit of some scenarios.

    Args:
        store: what is looked at.
        read_large: read large files and compare their digests; else only their sizes.
    """

    store: ReleaseStore
    read_large: bool = True
    releases: int = 0
    candidates: int = 0
    large: dict[str, LargeFile] = field(default_factory=dict)

    def breaks(self, scenario: str) -> Iterator[str]:
        """What does not hold, in order; nothing where all does.

        Raises:
            NotFound: there is no such scenario.
        """
        self.store.head(scenario)
        with ObjectReader(self.store.artifacts) as reader:
            contents = Contents(reader)
            releases = self.store.releases(scenario)
            yield from self._chain(scenario, releases, contents)
            yield from self._candidates(scenario, contents)
        yield from self._refs(scenario)

    def _chain(self, scenario: str, releases: list[Release], contents: Contents) -> Iterator[str]:
        previous: Release | None = None
        for step, release in enumerate(releases, start=1):
            name = f"{scenario} step {release.step}"
            problems = chain.problems(release, previous_hash=previous.hash if previous else chain.GENESIS, step=step)
            yield from (f"{name}: {problem}" for problem in problems)
            yield from (f"{name}: {problem}" for problem in self._release(release, previous, contents))
            if release.step != step:  # all that follows would be said to be in the wrong place
                return
            previous = release
            self.releases += 1
        head = self.store.head(scenario)
        if releases[-1] != head and head.step <= releases[-1].step:  # a later one was published since
            yield f"{scenario}: the head is step {head.step}, the chain ends at step {releases[-1].step}"

    def _release(self, release: Release, previous: Release | None, contents: Contents) -> Iterator[str]:
        before = previous.others if previous else {}
        try:
            parents = contents.commit(release.commit).parents
            expected = previous.commit if previous else None
            if (parents[0] if parents else None) != expected:
                yield f"the commit {release.commit[:12]} does not follow {expected[:12] if expected else 'nothing'} in git"
        except ReefError as error:
            yield error.message
            return
        for name, content in release.components.items():
            if before.get(name) != content:
                yield from self._content(name, content, contents)

    def _candidates(self, scenario: str, contents: Contents) -> Iterator[str]:
        for candidate in self.store.candidates(scenario):
            if candidate.dropped_at is None:
                self.candidates += 1
                for name, content in candidate.components.items():
                    yield from (f"{scenario} candidate {candidate.id}: {problem}" for problem in self._content(name, content, contents))

    def _content(self, name: str, content: Content, contents: Contents) -> Iterator[str]:
        try:
            actual, large = contents.of(contents.commit(content.commit).tree)
        except ReefError as error:
            yield error.message
            return
        if actual != content.content_id:
            yield f"the bytes of its {name}, {content.commit[:12]}, have the content id {actual[:12]}, not {content.content_id[:12]}"
        for file in large:
            if file.sha256 not in self.large:
                self.large[file.sha256] = file
                if problem := self.store.artifacts.large.problem(file, read=self.read_large):
                    yield problem

    def _refs(self, scenario: str) -> Iterator[str]:
        """Others may publish meanwhile, so what is out of step is looked at again."""
        wrong: list[str] = []
        for _ in range(_ATTEMPTS):
            refs = self.store.artifacts.refs()
            releases = self.store.releases(scenario)
            wanted = {mirror.step_ref(scenario, release.step): release.commit for release in releases}
            wanted[mirror.head_ref(scenario)] = releases[-1].commit
            wrong = [
                f"{scenario}: {ref} is at {refs.get(ref, 'nothing')[:12]}, not {at[:12]}"
                for ref, at in wanted.items()
                if refs.get(ref) != at
            ]
            kept = (full_ref(candidate.branch) for candidate in self.store.candidates(scenario) if candidate.dropped_at is None)
            wrong += [f"{scenario}: the branch {branch} is missing" for branch in kept if branch not in refs]
            if not wrong:
                return
        yield from wrong
