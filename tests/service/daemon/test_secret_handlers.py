"""Handlers of operations on secrets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cellblock import Secret
from cellblock.operations.secrets import ListSecrets
from cellblock.service.daemon.secret_handlers import secrets


@pytest.mark.parametrize(
    "options",
    [{}, {"secrets": ["ACME=env:X@a.test"]}, {"secrets": {"ACME": Secret(source="env:X", hosts=("a.test",)).to_dict()}}],
)
async def test_the_secrets_of_a_session_without_a_kernel_are_listed_without_starting_one(options: dict[str, Any]) -> None:
    named = SimpleNamespace(current=None, options=options)
    server: Any = SimpleNamespace(sessions=SimpleNamespace(find=lambda _: named))
    found = await secrets(server, ListSecrets("demo"))
    assert [(one["name"], one["source"], one["hosts"]) for one in found] == [("ACME", "env:X", ["a.test:443"])] * len(options)
