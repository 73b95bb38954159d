"""`cellblock requests` and `cellblock secret`."""

from __future__ import annotations

import io
import json
import os
import pty
import sys
from types import ModuleType, SimpleNamespace

import pytest

from cellblock.fronts.cli import main, output, secret_commands
from cellblock.model.overview import SecretRecord

VALUE = "a-value-of-enough-length"


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The entries of a keyring in memory."""
    found: dict[str, str] = {}
    module = ModuleType("keyring")
    module.get_keyring = lambda: SimpleNamespace(priority=5)  # type: ignore[attr-defined]
    module.set_password = lambda _service, name, value: found.update({name: value})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", module)
    return found


def test_a_secret_is_stored_from_standard_input(
    stored: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(VALUE + "\n"))
    assert main(["secret", "set", "ACME"]) == 0
    assert stored == {"ACME": VALUE}
    out, err = capsys.readouterr()
    assert json.loads(out) == {"stored": "ACME"}
    assert VALUE not in out + err


def test_a_terminal_does_not_show_the_value(stored: dict[str, str]) -> None:
    pid, terminal = pty.fork()
    if pid == 0:  # the child, whose terminal this is
        sys.stdin = os.fdopen(0)
        status = main(["secret", "set", "ACME"])
        os._exit(0 if status == 0 and stored == {"ACME": VALUE} else 1)
    shown = b""
    while b"Value of ACME: " not in shown:
        shown += os.read(terminal, 1000)
    os.write(terminal, VALUE.encode() + b"\n")
    while True:
        try:
            piece = os.read(terminal, 1000)
        except OSError:  # the child has ended
            break
        shown += piece
    os.close(terminal)
    assert os.waitpid(pid, 0)[1] == 0, shown
    assert VALUE.encode() not in shown


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("1ACME", VALUE, "name of an environment variable"),
        ("ACME", "short", "8 to 16,384"),
        ("ACME", "two\nlines of text", "on one line"),
        ("ACME", "x" * 20_000, "8 to 16,384"),
        ("ACME", "", "8 to 16,384"),
    ],
)
def test_a_wrong_secret_is_not_stored(
    stored: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    value: str,
    message: str,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(value))
    assert main(["secret", "set", name]) == 2
    assert message in capsys.readouterr().err
    assert stored == {}


def test_secrets_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    used = SecretRecord("ACME", "env:ACME", ("a.test:443",), ("header X-Key: {}",), 1.5)
    unused = SecretRecord("OTHER", "command:pass", ("a.test:443", "b.test:443"), ("body",))
    found = [used.to_dict(), unused.to_dict()]
    monkeypatch.setattr(secret_commands, "ask", lambda request: found if request.session == "demo" else [])
    assert main(["secret", "list", "demo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"secrets": found}
    monkeypatch.setattr(output, "wants_json", lambda _: False)
    assert main(["secret", "list", "demo"]) == 0
    shown = capsys.readouterr().out
    for text in ("env:ACME", "header X-Key: {}", "1970", "b.test:443", "never"):
        assert text in shown
    assert main(["secret", "list", "none"]) == 0
    assert "The session has no secrets." in capsys.readouterr().out
