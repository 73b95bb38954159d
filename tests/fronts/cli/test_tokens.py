"""`cellblock tokens`."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from cellblock.fronts.cli import main
from cellblock.service.store.tokens import Tokens


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path / "state"))


def test_a_token_is_made_shown_once_and_revoked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokens", "create", "for ci", "--scope", "run", "--scope", "read", "--days", "7"]) == 0
    made = json.loads(capsys.readouterr().out)
    with closing(Tokens().check()) as check:
        known = check(made["token"])
    assert known is not None
    assert known.may("run")
    assert not known.may("admin")
    assert main(["tokens", "list"]) == 0
    out = capsys.readouterr().out
    assert made["token"] not in out
    (listed,) = json.loads(out)["tokens"]
    assert (listed["name"], listed["scopes"]) == ("for ci", made["scopes"])
    assert main(["tokens", "revoke", listed["id"]]) == 0
    with closing(Tokens().check()) as check:
        assert check(made["token"]) is None
    assert main(["tokens", "revoke", listed["id"]]) == 1
    assert "there is no token" in capsys.readouterr().err


def test_a_scope_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokens", "create", "x", "--scope", "root"]) == 2
    assert "a token's scopes are one or more of" in capsys.readouterr().err
