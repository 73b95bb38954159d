"""Whether a path lies in another, as text."""

from __future__ import annotations

import pytest

from cellblock.walls.sandbox.paths import is_inside, topmost


@pytest.mark.parametrize(
    ("path", "directory", "inside"),
    [
        ("/a/b", "/a", True),
        ("/a", "/a", True),
        ("/ab", "/a", False),
        ("/a", "/a/b", False),
        ("/a", "/", True),
        ("/", "/", True),
        ("a/b", "a", True),
    ],
)
def test_a_path_lies_in_a_directory_and_not_in_one_whose_name_begins_alike(path: str, directory: str, inside: bool) -> None:
    assert is_inside(path, directory) is inside


def test_what_lies_in_another_path_is_left_out() -> None:
    assert topmost(["/a/b/c", "/a/b", "/ab", "/d", "/a/b"]) == ("/d", "/ab", "/a/b")
    assert topmost(["/usr", "/", "/home/user"]) == ("/",)
    assert topmost([]) == ()
