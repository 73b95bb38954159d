"""Tokens: what is stored of them, and what they are good for."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cellblock.errors import AccessError, InvalidInputError, NotFoundError
from cellblock.service.store.tokens import CODE_SECONDS, SCOPES, Tokens


def test_a_token_is_found_and_only_its_digest_is_stored(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "state")
    text, made = tokens.create("ci", ["run"], session="a")
    check = tokens.check()
    assert check(text) == check(text) == made
    assert tokens.all() == [made]
    check.close()
    assert not any(text.encode() in path.read_bytes() for path in (tmp_path / "state").iterdir())
    assert made.to_dict() | {"created": 0} == {
        "id": made.id, "name": "ci", "scopes": ["run"], "session": "a", "created": 0, "expires": None,
    }  # fmt: skip


def test_almost_the_same_is_not_the_same(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "state")
    text, _ = tokens.create("one")
    check = tokens.check()
    for wrong in (
        text[:-1] + ("a" if text[-1] != "a" else "b"),
        text[:-1],
        text + "a",
        text.upper(),
        "",
        text.replace("cb", "cc"),
    ):
        assert check(wrong) is None
    check.close()


def test_what_is_revoked_counts_no_more(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "state")
    text, made = tokens.create("one")
    check = tokens.check()
    assert check(text) is not None
    assert Tokens(tmp_path / "state").revoke(made.id) == made
    assert check(text) is None
    check.close()
    with pytest.raises(NotFoundError, match=made.id):
        tokens.revoke(made.id)


def test_what_has_expired_counts_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = Tokens(tmp_path / "state")
    text, made = tokens.create("one", lifetime=60)
    check = tokens.check()
    assert check(text) is not None
    assert made.expires is not None
    late = made.expires + 1
    monkeypatch.setattr(time, "time", lambda: late)
    assert check(text) is None
    check.close()


def test_scopes_imply_others(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "state")
    made = {scope: tokens.create("", [scope])[1] for scope in SCOPES}
    may = {scope: [wanted for wanted in SCOPES if token.may(wanted)] for scope, token in made.items()}
    assert may == {"read": ["read"], "run": ["read", "run"], "approve": ["read", "approve"], "admin": list(SCOPES)}


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "state")
    with pytest.raises(InvalidInputError, match="read, run, approve, admin"):
        tokens.create("one", ["write"])
    with pytest.raises(InvalidInputError, match="one or more"):
        tokens.create("one", [])
    with pytest.raises(InvalidInputError, match="one session"):
        tokens.create("one", ["admin"], session="a")
    for lifetime in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InvalidInputError, match="lifetime"):
            tokens.create("one", lifetime=lifetime)
    assert tokens.all() == []


def test_a_code_becomes_a_token_once_and_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = Tokens(tmp_path / "state")
    code = tokens.create_code(["approve"])
    late = tokens.create_code(["admin"])
    check = tokens.check()
    assert check(code) is None  # it is no token itself
    made = check(tokens.exchange(code))
    assert made is not None
    assert made.scopes == {"approve"}
    assert made.expires is not None
    for wrong in (code, "", "x" * 43):
        with pytest.raises(AccessError, match="used before"):
            tokens.exchange(wrong)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + CODE_SECONDS)
    with pytest.raises(AccessError, match="too old"):
        tokens.exchange(late)
    with pytest.raises(InvalidInputError):
        tokens.create_code(["everything"])
    check.close()
    assert not any(code.encode() in path.read_bytes() for path in (tmp_path / "state").iterdir())
