"""Values of secrets: where they are read, and what is refused without being shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cellblock import InvalidInputError, Secret
from cellblock.walls.keys.sources import completed, entries, read_value

CANARY = "canary-value-12345"


async def test_each_source_gives_its_value(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KEY", CANARY)
    (tmp_path / "key").write_text(CANARY + "\n")
    program = tmp_path / "bin" / "op"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho {CANARY}\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    for secret in (
        Secret.from_env("KEY"),
        Secret.from_file(str(tmp_path / "key")),
        Secret.from_command(["echo", CANARY]),
        Secret.from_op("op://vault/item/field"),
    ):
        assert await read_value("KEY", secret) == CANARY


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("env:MISSING", "this variable is not set"),
        ("file:/missing/key", "No such file"),
        ("file:/dev/zero", "not a regular file"),
        ("command:false", "status 1"),
        ("command:/missing/program", "No such file"),
        ("command:printf 'canary-value\\r\\nX: y-12345'", "on one line"),
        ("command:printf 'canary-value\\0-12345'", "on one line"),
        ("command:printf canary", "8 to 16,384"),
        ("command:printf canäry-value", "ASCII"),
        ("keyring:cellblock-test/nobody", "keyring"),
    ],
)
async def test_an_unsuitable_value_is_refused_and_not_shown(source: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        await read_value("KEY", Secret(source=source))
    assert message in str(caught.value)
    assert "canary" not in str(caught.value)


def test_entries_of_the_file_are_named_and_owned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CELLBLOCK_CONFIG", str(tmp_path / "config.toml"))
    assert entries() == {}
    file = tmp_path / "secrets.toml"
    file.write_text('[ACME]\nsource = "file:/k"\nhosts = ["acme.test"]\n')
    file.chmod(0o600)
    known = entries()
    assert completed("ACME", {}, known) == Secret(source="file:/k", hosts=("acme.test",))
    assert completed("ACME", {"hosts": ["b.test"]}, known) == Secret(source="file:/k", hosts=("b.test",))
    assert completed("OTHER", {}, known) == Secret(source="env:OTHER")
    file.chmod(0o666)
    with pytest.raises(InvalidInputError, match="can be changed by other users"):
        entries()
    file.chmod(0o600)
    for text in ("[ACME", "[ACME]\nvalue = 'x'\n"):
        file.write_text(text)
        with pytest.raises(InvalidInputError):
            entries()
