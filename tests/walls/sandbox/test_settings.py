"""Files of settings, and the values in them: what is wrong is named, and nothing is larger than its bound."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cellblock import InvalidInputError
from cellblock.walls.sandbox.policy import MIB, Policy
from cellblock.walls.sandbox.settings import Section, read_settings

KNOWN = dict.fromkeys(("names", "flag", "count"), "")


def section(data: object) -> Section:
    return Section("a.json", "part.", data, KNOWN)


def test_what_is_no_file_and_no_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"missing\.json cannot be read"):
        Policy.load(tmp_path / "missing.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(InvalidInputError, match=r"bad\.json cannot be parsed"):
        Policy.load(tmp_path / "bad.json")


@pytest.mark.parametrize(
    ("content", "said"),
    {
        "depth": ("[" * 200_000, "cannot be parsed"),
        "size": (json.dumps({"filesystem": {"allowWrite": ["x" * MIB]}}), "it has more than 1048576 bytes"),
        "count": (json.dumps({"network": {"deniedDomains": ["a.org"] * 1001}}), "has 1001 items, and the limit is 1000"),
        "digits": ('{"resources": {"memory": %s}}' % ("9" * 5000), "cannot be parsed"),
        "bytes": ("\udcff", "cannot be parsed"),
    }.values(),
    ids=["depth", "size", "count", "digits", "bytes"],
)
def test_a_file_of_settings_has_bounds(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb.json"
    path.write_text(content, "utf-8", "surrogateescape")
    with pytest.raises(InvalidInputError, match=said):
        Policy.load(path)


def test_a_pipe_in_the_place_of_settings_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidInputError, match="it is not a regular file"):
        Policy.load(tmp_path / "pipe")


def test_what_is_wrong_is_shown_in_short() -> None:
    cases: list[Any] = [{"x" * MIB: 1}, {"filesystem": {"allowWrite": "x" * MIB}}, {"network": {"ask": [[]] * MIB}}]
    for data in cases:
        with pytest.raises(InvalidInputError) as caught:
            Policy.parse(data)
        assert len(str(caught.value)) < 500


def test_lines_that_begin_with_slashes_are_comments_and_lines_keep_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('// a comment\n{\n  // another\n  "a": "// text"\n}')
    assert read_settings(path) == {"a": "// text"}
    path.write_text("// a comment\n{]")
    with pytest.raises(InvalidInputError, match="line 2"):
        read_settings(path)


def test_values_of_the_right_kind_are_returned_and_missing_ones_have_a_default() -> None:
    given = section({"names": ["a", "b"], "flag": True, "count": 3})
    assert (given.texts("names"), given.boolean("flag"), given.integer("count")) == (("a", "b"), True, 3)
    assert (section({}).texts("names"), section({}).boolean("flag"), section({}).get("count", 7)) == ((), False, 7)


def test_a_value_of_the_wrong_kind_is_named_with_its_place() -> None:
    cases: list[tuple[str, object, str]] = [
        ("names", "a", "must be a list of strings, not 'a'"),
        ("names", [""], "must be a list of strings"),
        ("names", ["a", 1], "must be a list of strings"),
        ("flag", 1, "must be true or false, not 1"),
        ("count", True, "must be an integer, not True"),
        ("count", 1.0, "must be an integer, not 1.0"),
    ]
    for key, value, complaint in cases:
        given = section({key: value})
        read = {"names": given.texts, "flag": given.boolean, "count": given.integer}[key]
        with pytest.raises(InvalidInputError, match=rf"^a\.json: part\.{key} {complaint}"):
            read(key)


def test_what_is_no_section_is_named() -> None:
    cases: list[tuple[object, str]] = [
        ([], "a.json: part must be an object, not list"),
        ({"name": 1}, "part.name is not a known key; did you mean 'names'?"),
        ({"zebra": 1}, "part.zebra is not a known key; known are names, flag, count"),
    ]
    for data, complaint in cases:
        with pytest.raises(InvalidInputError) as raised:
            section(data)
        assert complaint in str(raised.value)
