import pytest
from hypothesis import given
from hypothesis import strategies as st

from reef.artifacts.tree import changed_paths, check_path, check_paths, content_id
from reef.errors import InvalidTree
from reef.types import File

names = st.text(st.characters(categories=("L", "N"), include_characters="-_ "), min_size=1, max_size=8)
trees = st.dictionaries(names, st.builds(File, st.binary(max_size=20), st.booleans()), max_size=5)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../up",
        "a/../b",
        "a//b",
        "a/",
        "./a",
        "a\\b",
        "a\0b",
        "a\nb",
        ".git/config",
        "x/.GIT/hooks/p",
        "a/git~1/x",
        ".git ",
        "\ud800",
        "x" * 300,
    ],
)
def test_a_path_that_could_leave_or_hide_is_refused(path: str) -> None:
    with pytest.raises(InvalidTree):
        check_path(path)


@pytest.mark.parametrize(
    "path", ["AGENTS.md", "skills/run tests/SKILL.md", "memory/überblick.md", ".gitignore", "a..b/c", "extensions/x.ts"]
)
def test_an_ordinary_path_is_allowed(path: str) -> None:
    check_path(path)


def test_a_file_that_is_also_a_folder_is_refused() -> None:
    with pytest.raises(InvalidTree, match="file and a folder"):
        check_paths({"a/b": File(b""), "a": File(b"")})


@given(trees, trees)
def test_trees_have_the_same_content_id_exactly_when_nothing_changed(one: dict[str, File], other: dict[str, File]) -> None:
    assert (content_id(one) == content_id(other)) == (changed_paths(one, other) == ())


@given(trees)
def test_the_content_id_does_not_depend_on_order(tree: dict[str, File]) -> None:
    assert content_id(tree) == content_id(dict(reversed(tree.items())))
