"""Records of named sessions: what a session that was there already may differ in."""

from __future__ import annotations

from typing import Any

import pytest

from cellblock import InvalidInputError
from cellblock.model.sessions import SessionRecord


def record(isolate: str) -> SessionRecord:
    return SessionRecord("1", "s", "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00+00:00", isolate=isolate)


@pytest.mark.parametrize("options", [{}, {"sandbox": True}, {"isolate": "native"}, {"working_dir": "/elsewhere"}])
def test_a_session_is_as_isolated_as_was_asked(options: dict[str, Any]) -> None:
    record("native").check_isolation(options)


@pytest.mark.parametrize(
    ("isolate", "options", "asked"),
    [
        ("none", {"sandbox": True}, "a sandbox"),
        ("none", {"isolate": "native"}, "native"),
        ("landlock", {"isolate": "native"}, "native"),
        ("native", {"sandbox": False}, "none"),
        ("native", {"sandbox": False, "isolate": "native"}, "none"),
    ],
)
def test_another_isolation_is_an_error(isolate: str, options: dict[str, Any], asked: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^session 's' has isolate='{isolate}', and {asked} was asked for: "):
        record(isolate).check_isolation(options)
