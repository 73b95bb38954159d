"""The options of services: checked before anything is started."""

from __future__ import annotations

from typing import Any

import pytest

from cellblock import InvalidInputError
from cellblock.service.session.service_options import ServiceOptions, check_seconds


def test_services_check_their_options() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"require_shell_escape": True}, "needs approve_shell_cmds=True"),
        ({"approval_timeout": 0}, "approval_timeout must be a positive number"),
        ({"connect_timeout": float("nan")}, "connect_timeout must be a positive number"),
        ({"rules": "allow"}, "rules must be Rules"),
        ({"own_servers": 1}, "own_servers must be True or False, not 1"),
    ]
    for options, complaint in cases:
        with pytest.raises(InvalidInputError, match=complaint):
            ServiceOptions(**options)


def test_an_approval_may_take_for_ever() -> None:
    assert ServiceOptions(approval_timeout=None).approval_timeout is None


def test_what_is_no_number_of_seconds_is_named() -> None:
    cases: list[Any] = [True, 0, -1, float("inf"), float("nan"), "1", None]
    for seconds in cases:
        with pytest.raises(InvalidInputError, match="patience must be a positive number of seconds"):
            check_seconds("patience", seconds)
