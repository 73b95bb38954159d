"""The options of services: checked before anything is started."""

from __future__ import annotations

from typing import Any

import pytest

from cellblock import InvalidInputError
from cellblock.service.session.service_options import ServiceOptions, check_seconds


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"require_shell_escape": True}, "needs approve_shell_cmds=True"),
        ({"approval_timeout": 0}, "approval_timeout must be a positive number"),
        ({"connect_timeout": float("nan")}, "connect_timeout must be a positive number"),
        ({"rules": "allow"}, "rules must be Rules"),
        ({"own_servers": 1}, "own_servers must be True or False, not 1"),
    ],
)
def test_services_check_their_options(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidInputError, match=complaint):
        ServiceOptions(**options)


def test_an_approval_may_take_for_ever() -> None:
    assert ServiceOptions(approval_timeout=None).approval_timeout is None


@pytest.mark.parametrize("seconds", [True, 0, -1, float("inf"), float("nan"), "1", None])
def test_what_is_no_number_of_seconds_is_named(seconds: Any) -> None:
    with pytest.raises(InvalidInputError, match="patience must be a positive number of seconds"):
        check_seconds("patience", seconds)
