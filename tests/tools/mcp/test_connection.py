"""One connection: open for many calls, ended once, and each trouble one error without secrets."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cellblock import McpServerError
from cellblock.tools.mcp.connection import Connection, _reason
from cellblock.tools.mcp.params import parse_params

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

HOSTILE = str(Path(__file__).parents[2] / "servers" / "hostile_server.py")


@asynccontextmanager
async def connected(
    params: Mapping[str, Any], environment: Mapping[str, str] = os.environ, timeout: float = 20
) -> AsyncIterator[Connection]:
    connection = Connection("it", parse_params("it", params), environment, timeout)
    try:
        yield connection
    finally:
        await connection.close()


def hostile(mode: str = "good", **more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": [HOSTILE, mode], **more}


async def test_closing_during_the_start_ends_it() -> None:
    async with connected(hostile("hangs")) as connection:
        waiting = asyncio.create_task(connection.opened())
        await connection.close()
        with pytest.raises(McpServerError, match="it was stopped"):
            await waiting


async def test_no_error_shows_a_secret() -> None:
    environment = {**os.environ, "SECRET": "s3cr3t-value"}
    async with connected(hostile(env={"KEY": "${SECRET}"}), environment) as connection:
        await connection.opened()
        with pytest.raises(McpServerError, match=r"KEY \*\*\* was not accepted(?s:.*)'KEY': '\*\*\*'") as raised:
            await connection.call("blab", {})
    assert "s3cr3t" not in f"{raised.value}{raised.value.stderr}"


def test_the_reason_is_the_first_in_a_tree_of_errors() -> None:
    class Response:
        status_code, reason_phrase = 503, "Service Unavailable"

    failed = OSError("https://user:password@a.example")
    failed.response = Response()  # type: ignore[attr-defined]
    tree = ExceptionGroup("all", [ExceptionGroup("some", [ValueError("first")]), OSError("second")])
    assert _reason(tree) == "first"
    assert _reason(failed) == "HTTP 503 Service Unavailable"
    assert _reason(KeyError()) == "KeyError"
