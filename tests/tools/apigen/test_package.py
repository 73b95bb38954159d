"""Packages on disk: whole or not at all, not again where nothing changed, and nothing replaced that is not ours."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cellblock import InvalidInputError
from cellblock.tools.apigen import package
from cellblock.tools.apigen.package import tools_hash, write_package
from cellblock.tools.calling.content import ToolSpec
from suite import first_quick

from .generated import importable

TOOLS = [
    ToolSpec(
        "read-file", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    ),
    ToolSpec("class", "", {"type": "object"}, {"type": "object", "properties": {"x": {"type": "integer"}}}),
]


def files(root: Path) -> dict[str, int]:
    """The files of the package, and which ones they are."""
    return {path.name: path.stat().st_ino for path in (root / "git").iterdir()}


def test_a_package_has_a_module_for_each_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "deep" / "mcptools"
    assert write_package(root, "git", TOOLS) == ["read_file", "class_"]
    assert sorted(files(root)) == [".cellblock.json", "__init__.py", "class_.py", "read_file.py"]
    assert sorted(path.name for path in root.iterdir()) == ["git"]
    with importable(root, monkeypatch) as runner:
        runner.answer = "text"
        read_file = importlib.import_module("mcptools.git.read_file")
        assert read_file.run(read_file.Params(path="x")) == "text"
        assert runner.calls == [("git", "read-file", {"path": "x"})]
        doc = importlib.import_module("mcptools.git").__doc__ or ""
        assert "read_file(path: str) -> str" in doc
        assert "class_() -> Result" in doc


def test_what_the_server_says_is_in_the_docstring_and_the_record(tmp_path: Path) -> None:
    write_package(tmp_path, "git", TOOLS, instructions='Ask first.\n"""\u202eimport os')
    assert 'The server says:\n\nAsk first.\n\\"' in (tmp_path / "git" / "__init__.py").read_text()
    record = json.loads((tmp_path / "git" / ".cellblock.json").read_text())
    assert record["instructions"] == 'Ask first.\n"""\\u202eimport os'
    assert [tool["arguments"] for tool in record["tools"]] == ["path", ""]


def test_a_name_that_several_tools_would_have_says_what_to_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "clash"
    tools = [ToolSpec("a-b", "", {}), ToolSpec("a_b", "", {})]
    assert write_package(root, "server", tools[:1]) == ["a_b"]
    assert write_package(root, "server", tools) == ["a_b_d44362d6", "a_b_648fa9b3"]
    with importable(root, monkeypatch):
        importlib.import_module("clash.server.a_b_648fa9b3")
        with pytest.raises(ImportError, match=r"import one of a_b_d44362d6 \(a-b\), a_b_648fa9b3 \(a_b\)"):
            importlib.import_module("clash.server.a_b")


async def test_calls_can_be_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    write_package(tmp_path / "mcptools", "git", TOOLS)
    with importable(tmp_path / "mcptools", monkeypatch) as runner:
        runner.answer = {"x": 1}
        tool = importlib.import_module("mcptools.git.class_")
        results = await asyncio.gather(*(tool.run_async(tool.Params(n=n)) for n in range(3)))
        assert [result.x for result in results] == [1, 1, 1]
        assert [arguments for _, _, arguments in runner.calls] == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_no_result_is_an_empty_text_and_one_that_is_more_than_text_stays_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Text(str):
        images = ("an image",)

    write_package(tmp_path / "mcptools", "git", TOOLS)
    with importable(tmp_path / "mcptools", monkeypatch) as runner:
        tool = importlib.import_module("mcptools.git.read_file")
        assert tool.run(tool.Params(path="x")) == ""
        runner.answer = Text("")
        assert tool.run(tool.Params(path="x")).images == ("an image",)


def test_an_interpreter_without_pydantic_is_told_so(tmp_path: Path) -> None:
    write_package(tmp_path / "mcptools", "git", TOOLS)
    code = "import sys; sys.modules['pydantic'] = None; import mcptools.git.read_file"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "the tools of git need pydantic 2, and this interpreter has none: %pip install 'pydantic>=2'" in done.stderr


def test_what_has_not_changed_is_not_written(tmp_path: Path) -> None:
    progress: list[tuple[int, int]] = []
    write_package(tmp_path, "git", TOOLS)
    before = files(tmp_path)
    assert write_package(tmp_path, "git", TOOLS, lambda *done: progress.append(done)) == ["read_file", "class_"]
    assert files(tmp_path) == before
    assert progress[-1] == (2, 2)


def test_what_has_changed_is_replaced_wholly(tmp_path: Path) -> None:
    write_package(tmp_path, "git", TOOLS)
    assert write_package(tmp_path, "git", TOOLS[:1]) == ["read_file"]
    assert sorted(files(tmp_path)) == [".cellblock.json", "__init__.py", "read_file.py"]
    assert [path.name for path in tmp_path.iterdir()] == ["git"]


@pytest.mark.parametrize("edit", ["changed", "vouched", "bytecode", "added", "removed", "linked", "record", "piped"])
def test_a_package_that_was_edited_is_written_again(tmp_path: Path, edit: str) -> None:
    write_package(tmp_path, "git", TOOLS)
    module = tmp_path / "git" / "read_file.py"
    source = module.read_text()
    if edit == "changed":
        module.write_text(source + "\nimport os\n")
    elif edit == "vouched":
        # With everything in the package that could say that it is as it was.
        module.write_text(source + "\nimport os\n")
        digest = hashlib.sha256(module.read_bytes()).hexdigest()
        record = json.loads((tmp_path / "git" / ".cellblock.json").read_text())
        names = [path.name for path in (tmp_path / "git").glob("*.py")]
        known = {name: hashlib.sha256((tmp_path / "git" / name).read_bytes()).hexdigest() for name in names}
        (tmp_path / "git" / ".cellblock.json").write_text(json.dumps({**record, "files": {**known, "read_file.py": digest}}))
    elif edit == "bytecode":
        cache = tmp_path / "git" / "__pycache__"
        cache.mkdir()
        (cache / f"read_file.{sys.implementation.cache_tag}.pyc").write_bytes(b"planted")
    elif edit == "added":
        (tmp_path / "git" / "pydantic.py").write_text("")
    elif edit == "record":
        record = json.loads((tmp_path / "git" / ".cellblock.json").read_text())
        (tmp_path / "git" / ".cellblock.json").write_text(json.dumps({**record, "tools": 7}))
    else:
        module.unlink()
        if edit == "linked":
            other = tmp_path / "other.py"
            other.write_text(source)
            module.symlink_to(other)
        elif edit == "piped":
            os.mkfifo(module)
    assert write_package(tmp_path, "git", TOOLS) == ["read_file", "class_"]
    assert module.read_text() == source
    assert not module.is_symlink()
    assert not (tmp_path / "git" / "pydantic.py").exists()
    assert not (tmp_path / "git" / "__pycache__").exists()


@pytest.mark.slow
def test_a_deep_tree_in_the_way_stops_nothing(tmp_path: Path) -> None:
    write_package(tmp_path, "git", TOOLS)
    planted = tmp_path / ".git.x.0.new"
    planted.mkdir()
    try:
        for top in (planted, tmp_path / "git"):
            here = os.open(top, os.O_RDONLY)
            for _ in range(1050):
                os.mkdir("d", dir_fd=here)
                below = os.open("d", os.O_RDONLY, dir_fd=here)
                os.close(here)
                here = below
            os.close(here)
        os.utime(planted, (0, 0))
        assert write_package(tmp_path, "git", TOOLS) == ["read_file", "class_"]
        assert sorted(files(tmp_path)) == [".cellblock.json", "__init__.py", "class_.py", "read_file.py"]
    finally:
        subprocess.run(["rm", "-rf", *map(str, tmp_path.iterdir())], check=True)


def test_a_directory_that_was_not_generated_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "git").mkdir()
    write_package(tmp_path, "git", TOOLS)  # an empty one is nobody's
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "git")
    for name in ("mine", "file", "link"):
        with pytest.raises(InvalidInputError, match="was not generated by cellblock"):
            write_package(tmp_path, name, TOOLS)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    assert (tmp_path / "link").is_symlink()


def test_a_link_in_the_place_of_the_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mcptools").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidInputError, match="not a link"):
        write_package(tmp_path / "mcptools", "git", TOOLS)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_record_that_is_a_link_is_none(tmp_path: Path) -> None:
    write_package(tmp_path, "git", TOOLS)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".cellblock.json").symlink_to(tmp_path / "git" / ".cellblock.json")
    with pytest.raises(InvalidInputError, match="was not generated"):
        write_package(tmp_path, "mine", TOOLS)


def test_a_generation_that_fails_leaves_the_older_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_package(tmp_path, "git", TOOLS)
    before = files(tmp_path)
    opened = os.open

    def full(path: str, *args: int, **more: int) -> int:
        if path == "__init__.py":
            raise OSError(28, "No space left on device")
        return opened(path, *args, **more)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError, match="No space left"):
        write_package(tmp_path, "git", TOOLS[:1])
    monkeypatch.undo()
    assert files(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["git"]


@pytest.mark.parametrize("step", first_quick(["_swap", "_build"]))
def test_a_generation_that_is_killed_leaves_a_whole_package(tmp_path: Path, step: str) -> None:
    write_package(tmp_path, "git", TOOLS)
    before = files(tmp_path)
    code = (
        "import os, sys\n"
        "from cellblock.tools.apigen import package\n"
        f"package.{step} = lambda *_: os.kill(os.getpid(), 9)\n"
        f"package.write_package({str(tmp_path)!r}, 'git', [])\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert files(tmp_path) == before
    left = [path for path in tmp_path.iterdir() if path.name != "git"]
    for path in left:
        os.utime(path, (time.time() - 7200,) * 2)
    write_package(tmp_path, "git", TOOLS[:1])
    assert [path.name for path in tmp_path.iterdir()] == ["git"]


def test_where_two_directories_cannot_change_places_the_older_one_makes_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(tmp_path, "git", TOOLS)
    monkeypatch.setattr(package, "_exchange", lambda *_: False)
    assert write_package(tmp_path, "git", TOOLS[:1]) == ["read_file"]
    assert [path.name for path in tmp_path.iterdir()] == ["git"]
    assert "class_.py" not in files(tmp_path)


def test_the_hash_is_of_everything_that_is_said_of_a_tool() -> None:
    assert tools_hash(TOOLS) == tools_hash(list(TOOLS))
    others = [TOOLS[:1], TOOLS[::-1], [ToolSpec("read-file", "Other words.", TOOLS[0].input_schema), TOOLS[1]]]
    assert len({tools_hash(tools) for tools in [TOOLS, *others]}) == 4


def test_a_server_without_tools_has_a_package(tmp_path: Path) -> None:
    assert write_package(tmp_path, "empty", []) == []
    compile((tmp_path / "empty" / "__init__.py").read_text(), "x", "exec")
