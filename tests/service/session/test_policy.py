"""How a session is isolated, by what its program asks for and by what its host has."""

from __future__ import annotations

from typing import Any

import pytest

from cellblock import Host, InvalidInputError
from cellblock.service.session.policy import requested_tier


def test_what_is_asked_for_wins() -> None:
    cases: list[tuple[bool, str | None, str]] = [
        (True, "landlock", "landlock"),
        (False, "landlock", "none"),
        (False, None, "none"),
    ]
    for sandbox, isolate, name in cases:
        assert requested_tier(sandbox, isolate, None).name == name


def test_a_host_with_a_sandbox_gives_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLBLOCK_ISOLATE", "landlock")
    assert requested_tier(True, None, Host(isolate="native")).name == "native"
    assert requested_tier(True, None, Host(isolate="none")).name == "landlock"


def test_what_is_no_tier_is_refused() -> None:
    cases: list[tuple[Any, str]] = [
        ((True, "none", None), "sandbox=False switches the sandbox off"),
        (("yes", None, None), "sandbox must be True or False"),
        ((True, None, "h"), "host must be a Host"),
    ]
    for given, message in cases:
        with pytest.raises(InvalidInputError, match=message):
            requested_tier(*given)
