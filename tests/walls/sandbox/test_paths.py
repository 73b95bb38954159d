"""Whether a path lies in another, as text."""

from __future__ import annotations

from cellblock.walls.sandbox.paths import is_inside, topmost


def test_a_path_lies_in_a_directory_and_not_in_one_whose_name_begins_alike() -> None:
    cases: list[tuple[str, str, bool]] = [
        ("/a/b", "/a", True),
        ("/a", "/a", True),
        ("/ab", "/a", False),
        ("/a", "/a/b", False),
        ("/a", "/", True),
        ("/", "/", True),
        ("a/b", "a", True),
    ]
    for path, directory, inside in cases:
        assert is_inside(path, directory) is inside


def test_what_lies_in_another_path_is_left_out() -> None:
    assert topmost(["/a/b/c", "/a/b", "/ab", "/d", "/a/b"]) == ("/d", "/ab", "/a/b")
    assert topmost(["/usr", "/", "/home/user"]) == ("/",)
    assert topmost([]) == ()
