"""Files that name packages are parsed here, and everything that leads elsewhere is refused with file, line and next step."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cellblock.common.package_files import (
    Parsed,
    checked_requirement,
    parse_lock,
    parse_project,
    parse_requirements,
    parse_script,
    read_text,
)
from cellblock.errors import InvalidInputError

HASH = "ab" * 32


def test_requirements_of_the_index_are_understood() -> None:
    cases: list[str] = [
        "pandas",
        "pandas>=2",
        "a.b_c[x,y]>=1,<2,!=1.5.*",
        "a (>=1)",
        "a==1+local",
        "a~=1.0; python_version < '3.12'",
    ]
    for text in cases:
        assert checked_requirement(f"  {text} ") == text


def test_a_line_that_leads_elsewhere_is_refused() -> None:
    cases: list[tuple[str, str]] = [
        ("-r more.txt", "copy the lines"),
        ("--requirement=more.txt", "copy the lines"),
        ("-c limits.txt", "use a lock"),
        ("-e .", "PYTHONPATH"),
        ("--editable ./x", "PYTHONPATH"),
        ("./x", "PYTHONPATH"),
        ("/etc/passwd", "PYTHONPATH"),
        ("file:x.whl", "PYTHONPATH"),
        ("file:///x.whl", "into your index"),
        ("https://evil.example/x.whl", "into your index"),
        ("git+https://evil.example/x", "into your index"),
        ("x @ https://evil.example/x.whl", "into your index"),
        ("x @ file:x.whl", "into your index"),
        ("-i https://evil.example", "into your index"),
        ("--index-url evil.example", "pip's configuration"),
        ("--extra-index-url=evil.example", "pip's configuration"),
        ("--find-links x", "pip's configuration"),
        ("--trusted-host evil.example", "pip's configuration"),
        ("--pre", "remove the option"),
        ("x y", "is not a requirement"),
        ("x; import os\x1b[2J", "is not a requirement"),
        ("x>=$(id)", "is not a requirement"),
    ]
    for line, advice in cases:
        with pytest.raises(InvalidInputError, match=rf"^needs\.txt, line 3: .*{advice}"):
            parse_requirements(f"# first\nfine\n{line}\n", "needs.txt")


def test_lines_are_joined_and_their_hashes_kept() -> None:
    text = f"Tiny_Demo==1 \\\n    --hash=sha256:{HASH} \\\n    --hash=sha256:{HASH[::-1]}  # both\n\nother>=2 # no hash\n"
    assert parse_requirements(text, "r") == Parsed(("Tiny_Demo==1", "other>=2"), {"tiny-demo": (HASH, HASH[::-1])})
    with pytest.raises(InvalidInputError, match="r, line 1: only sha256"):
        parse_requirements("x==1 --hash=md5:abc", "r")


PROJECT = """
[project]
name = "own"
dependencies = ["one>=1"]
[dependency-groups]
Dev_Tools = ["two", {include-group = "more"}]
more = ["three"]
round = [{include-group = "round"}]
"""


def nested(depth: int) -> str:
    """Return a project whose groups each include the next one twice."""
    groups = (f'g{n} = [{{include-group = "g{n + 1}"}}, {{include-group = "g{n + 1}"}}]' for n in range(depth))
    return "\n".join(["[dependency-groups]", *groups, f'g{depth} = ["one"]'])


def test_a_group_that_is_included_often_is_read_once() -> None:
    assert parse_project(nested(20), "p", ["g0"]).packages == ("one",)


def test_projects_have_dependencies_and_groups() -> None:
    assert parse_project(PROJECT, "p").packages == ("one>=1",)
    assert parse_project(PROJECT, "p", ["dev-tools"]).packages == ("one>=1", "two", "three")


def test_projects_that_need_more_than_the_index_are_refused() -> None:
    cases: list[tuple[str, list[str], str]] = [
        (PROJECT, ["x"], "p has no dependency group 'x': it has dev-tools, more, round"),
        (PROJECT, ["round"], "include each other"),
        ('[project]\ndynamic = ["dependencies"]', [], "only a build knows them"),
        ("[tool.x]\n", [], "names no dependencies"),
        ('[project]\ndependencies = ["x @ https://evil.example/x"]', [], "p, project.dependencies: .*into your index"),
        ('[project]\ndependencies = ["X_y"]\n[tool.uv.sources]\nx-y = { git = "https://a.example" }', [], "takes x-y from"),
        (nested(1000), ["g0"], "more than 20 levels"),
        ("[project\n", [], "p is not valid TOML"),
        ("[project]\ndependencies = [3]", [], "3 is not a requirement"),
    ]
    for text, groups, said in cases:
        with pytest.raises(InvalidInputError, match=said):
            parse_project(text, "p", groups)


def test_scripts_have_dependencies_in_comments() -> None:
    text = '#!/usr/bin/env python\n# /// script\n# dependencies = [\n#   "one",\n#\n#   "two<3",\n# ]\n# ///\nprint(1)\n'
    assert parse_script(text, "s.py").packages == ("one", "two<3")
    for wrong, said in (
        ("print(1)\n", "no block"),
        (text + text, "more than one block"),
        (text.replace("# ///\n", ""), "line 2: the block has no end"),
        (text.replace('"one"', '"-r x"'), r"s\.py, dependencies: '-r x' is not supported"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            parse_script(wrong, "s.py")


def lock(entry: str) -> str:
    return f'lock-version = "1.0"\ncreated-by = "test"\n[[packages]]\n{entry}\n'


FILE = f'{{ name = "a-1.whl", url = "https://files.example/a-1.whl", hashes = {{ sha256 = "{HASH}" }} }}'


def test_locks_have_versions_and_hashes() -> None:
    text = lock(f'name = "A"\nversion = "1"\nmarker = "os_name == \'posix\'"\nwheels = [{FILE}]\nsdist = {FILE}')
    assert parse_lock(text, "l") == Parsed(("A==1; os_name == 'posix'",), {"a": (HASH,)}, exact=True)
    assert parse_lock(text + '[tool.cellblock]\nbase = "empty"\n', "l").base == "empty"


def test_locks_without_proof_are_refused() -> None:
    cases: list[tuple[str, str]] = [
        ('lock-version = "2.0"\npackages = []', "not a lock of version 1"),
        ('lock-version = "1.0"', "packages must be a list"),
        (lock('name = "a"'), "l, package a: it needs a name and a version"),
        (lock('name = "a"\nversion = "1"'), "must have a list of SHA-256 hashes"),
        (lock('name = "a"\nversion = "1"\nwheels = [{ url = "https://evil.example/a.whl" }]'), "a file has no sha256 hash"),
        (lock('name = "a"\nversion = "1"\nwheels = [{ hashes = { md5 = "00" } }]'), "a file has no sha256 hash"),
        (lock('name = "a"\nversion = "1"\nwheels = [{ hashes = { sha256 = "00" } }]'), "not a SHA-256 hash"),
        (lock('name = "a"\nversion = "1"\nvcs = { type = "git", url = "https://evil.example" }'), "its source is vcs"),
        (
            lock('name = "a"\ndirectory = { path = ".", editable = true }'),
            "its source is directory.*uv export --no-emit-local",
        ),
        (lock('name = "a"\nversion = "1"\narchive = { url = "https://evil.example/a.zip" }'), "its source is archive"),
        (lock(f'name = "a"\nversion = "1"\nmarker = "\'x\' in extras"\nwheels = [{FILE}]'), "export the lock for one set"),
    ]
    for text, said in cases:
        with pytest.raises(InvalidInputError, match=said):
            parse_lock(text, "l")


def test_a_pipe_that_a_session_has_planted_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "requirements.txt")
    with pytest.raises(InvalidInputError, match=r"requirements.txt cannot be a file of packages: it is not a regular file"):
        read_text(str(tmp_path / "requirements.txt"))
