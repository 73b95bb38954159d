"""Values of secrets: where they are read, and what is refused without being shown."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cellblock import InvalidInputError, Secret
from cellblock.walls.keys.sources import completed, entries, read_value, store

CANARY = "canary-value-12345"


Keyring = dict[tuple[str, str], str]


@pytest.fixture
def keyring(monkeypatch: pytest.MonkeyPatch) -> Keyring:
    """A keyring in memory."""
    found: Keyring = {}
    install(monkeypatch, get_password=lambda service, name: found.get((service, name)), set_password=_putting(found))
    return found


def _putting(found: Keyring) -> Callable[[str, str, str], None]:
    def put(service: str, name: str, value: str) -> None:
        found[service, name] = value

    return put


def install(monkeypatch: pytest.MonkeyPatch, priority: float = 5, **functions: Any) -> None:
    """Install a package keyring."""
    module = ModuleType("keyring")
    module.__spec__ = SimpleNamespace()  # type: ignore[assignment]  # that it is there
    for name, function in functions.items():
        setattr(module, name, function)
    module.get_keyring = lambda: SimpleNamespace(priority=priority)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", module)


async def test_a_stored_secret_is_found_by_its_name(keyring: Keyring, monkeypatch: pytest.MonkeyPatch) -> None:
    store("ACME", CANARY + "\n")
    assert keyring == {("cellblock", "ACME"): CANARY}
    secret = completed("ACME", {"hosts": ["a.test"]}, {})
    assert secret == Secret(source="keyring:cellblock/ACME", hosts=("a.test",))
    assert await read_value("ACME", secret) == CANARY
    known = {"ACME": Secret(hosts=("a.test",))}
    assert completed("ACME", {}, known) == secret
    assert completed("ACME", {}, {"ACME": Secret(source="file:/k")}) == Secret(source="file:/k")
    with pytest.raises(InvalidInputError, match="no such entry: run 'cellblock secret set OTHER', or set the variable OTHER"):
        await read_value("OTHER", completed("OTHER", {}, {}))
    monkeypatch.setenv("ACME", "of the environment")
    assert completed("ACME", {}, {}) == Secret(source="env:ACME")


async def test_without_a_keyring_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: str) -> None:
        raise OSError(f"D-Bus said {CANARY}")

    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(InvalidInputError, match=r"pip install keyring\. Without a keyring, name a file"):
        store("ACME", CANARY)
    install(monkeypatch, priority=0)
    with pytest.raises(InvalidInputError, match="start GNOME Keyring or KWallet"):
        store("ACME", CANARY)
    install(monkeypatch, set_password=fail, get_password=fail)
    for value in (CANARY, "short"):
        with pytest.raises(InvalidInputError) as caught:
            store("ACME", value)
        assert "canary" not in str(caught.value)
    with pytest.raises(InvalidInputError, match=r"the keyring failed \(OSError\): is it locked"):
        await read_value("ACME", Secret(source="keyring:cellblock/ACME"))


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


async def test_a_key_of_aws_comes_from_a_profile_or_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key, file = "canary0123456789abcdef", tmp_path / "credentials"
    file.write_text(f"[dev]\naws_access_key_id = AKIA0123456789012345\naws_secret_access_key = {key}\n[sso]\nregion = x\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    assert await read_value("AWS", Secret.aws("dev", hosts=["a.test"])) == f"AKIA0123456789012345:{key}"
    for name, value in (("ACCESS_KEY_ID", "ASIA0123456789012345"), ("SECRET_ACCESS_KEY", key), ("SESSION_TOKEN", "token")):
        monkeypatch.setenv(f"AWS_{name}", value)
    assert await read_value("AWS", Secret.aws(hosts=["a.test"])) == f"ASIA0123456789012345:{key}:token"
    for profile, why in (("sso", "has no key; for other credentials, use command:"), ("none", "has no profile 'none'")):
        with pytest.raises(InvalidInputError, match=why):
            await read_value("AWS", Secret.aws(profile, hosts=["a.test"]))
    with pytest.raises(InvalidInputError, match="it must be ID:KEY") as caught:
        await read_value("AWS", Secret.from_command(["echo", key], hosts=["a.test"], sigv4=True))
    assert "canary" not in str(caught.value)
    file.write_text(f"{key}")
    with pytest.raises(InvalidInputError, match="cannot be parsed") as caught:
        await read_value("AWS", Secret.aws("dev", hosts=["a.test"]))
    assert "canary" not in str(caught.value)


async def test_an_unsuitable_value_is_refused_and_not_shown() -> None:
    cases: list[tuple[str, str]] = [
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
    ]
    for source, message in cases:
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
