"""Options of a sandbox: sizes, paths and hosts as people write them, and errors that name the option."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cellblock import InvalidInputError
from cellblock.common.sandbox_options import NAMES, SandboxOptions

GIB = 2**30


def test_sizes_are_bytes() -> None:
    cases: list[tuple[Any, int | None]] = [
        ("2G", 2 * GIB),
        ("2g", 2 * GIB),
        ("2GB", 2 * GIB),
        ("2GiB", 2 * GIB),
        ("2 GiB", 2 * GIB),
        (" 1.5G ", 3 * GIB // 2),
        ("512M", GIB // 2),
        ("512MiB", GIB // 2),
        ("524288K", GIB // 2),
        ("1T", 1024 * GIB),
        ("2147483648", 2 * GIB),
        ("2147483648B", 2 * GIB),
        (2 * GIB, 2 * GIB),
        (None, None),
    ]
    for given, size in cases:
        assert SandboxOptions(memory=given).memory == size


def test_what_is_no_size_is_refused() -> None:
    cases: list[Any] = ["2X", "", "G", "-2G", "2,5G", "1e9", "0.3K", "2G ram", True, 2e9, [], b"2G", "²G", "9" * 99]
    for given in cases:
        with pytest.raises(InvalidInputError, match=r"memory must be a size such as '2G'.*, not "):
            SandboxOptions(memory=given)


def test_one_is_a_list_of_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    one = SandboxOptions(read="~/data", write=tmp_path, hosts="pypi.org")
    assert (one.read, one.write, one.hosts) == ((f"{tmp_path}/data",), (str(tmp_path),), ("pypi.org",))
    several = SandboxOptions(read=[tmp_path, "a", "a"], hosts={"b"})  # type: ignore[arg-type]  # any collection will do
    assert (several.read, several.hosts) == ((str(tmp_path), "a"), ("b",))
    assert several.to_dict() == {"read": [str(tmp_path), "a"], "hosts": ["b"]}
    assert SandboxOptions().given == []


@pytest.mark.parametrize("name", ["read", "write", "hosts", "allow_hosts"])
@pytest.mark.parametrize("given", [5, [5], [""], "", {"a": 1}, None, [None], [b"a"]])
def test_what_is_no_list_of_texts_is_refused_by_its_name(name: str, given: Any) -> None:
    with pytest.raises(InvalidInputError, match=f"^{name} must be "):
        SandboxOptions(**{name: given})


def test_a_path_has_no_nul() -> None:
    with pytest.raises(InvalidInputError, match=r"read must be .* NUL"):
        SandboxOptions(read="a\0b")


def test_links_are_resolved_and_paths_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    (tmp_path / "broken").symlink_to("nowhere")
    found = SandboxOptions(memory="1G", read=["link"], write="there", hosts="a", allow_hosts=["b"]).resolved()
    assert (found.read, found.write) == ((str(tmp_path / "there"),), (str(tmp_path / "there"),))
    assert (found.memory, found.hosts, found.allow_hosts) == (GIB, ("a",), ("b",))
    for name in ("read", "write"):
        for missing in ("nowhere", "broken"):
            with pytest.raises(InvalidInputError, match=f"{name}: {missing} does not exist: make it first"):
                SandboxOptions(**{name: missing}).resolved()


@pytest.mark.parametrize("name", ["read", "write"])
def test_a_directory_that_cannot_be_entered_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def access(path: str, mode: int) -> bool:
        return (path, mode) != (str(tmp_path), os.X_OK)

    monkeypatch.setattr(os, "access", access)  # root can enter all directories
    with pytest.raises(InvalidInputError, match=f"{name}: {tmp_path} cannot be entered by this user: name another path"):
        (SandboxOptions(read=tmp_path) if name == "read" else SandboxOptions(write=tmp_path)).resolved()
    assert SandboxOptions(read=tmp_path.parent).resolved().read == (str(tmp_path.parent),)


def test_the_names_are_those_of_the_fields() -> None:
    assert NAMES == ("memory", "read", "write", "hosts", "allow_hosts", "http", "secrets", "devices")
