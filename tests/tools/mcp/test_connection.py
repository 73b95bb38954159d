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

from cellblock import InvalidInputError, McpServerError
from cellblock.tools.mcp import stdio
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


@pytest.mark.slow
async def test_calls_share_a_connection_that_ends_once() -> None:
    async with connected(hostile()) as connection:
        usable = [connection.usable]
        await connection.opened()
        assert [*usable, connection.usable] == [False, True]
        outcomes = await asyncio.gather(*(connection.call("echo", {"n": n}) for n in range(3)))
        assert [outcome.text for outcome in outcomes] == ['{"n": 0}', '{"n": 1}', '{"n": 2}']
        await connection.close()
        await connection.close()
        assert (connection.ended, connection.usable) == (True, False)
        with pytest.raises(McpServerError, match="cannot be used: it was stopped"):
            await connection.opened()


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"command": "no-such-program"}, "could not be started .is .*PATH..; it wrote to stderr: no-such-program: No such"),
        (hostile(cwd="/no/such/place"), "it cannot be started"),
        ({"command": sys.executable, "args": ["-c", "import sys; sys.exit('sorry')"]}, "exit status 1.*sorry"),
        ({"url": "http://127.0.0.1:1/mcp"}, "cannot be used"),
    ],
    ids=["missing", "nowhere", "ends", "refused"],
)
async def test_a_server_that_cannot_be_used_says_why(params: dict[str, Any], said: str) -> None:
    async with connected(params) as connection:
        with pytest.raises(McpServerError, match=f"(?s){said}"):
            await connection.opened()
        assert connection.ended


@pytest.mark.slow
async def test_a_server_that_is_not_ready_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "_SECONDS_TO_LEAVE", 0.05)
    async with connected(hostile("hangs"), timeout=0.1) as connection:
        with pytest.raises(McpServerError, match=r"it was not ready within 0\.1 s"):
            await connection.opened()


async def test_closing_during_the_start_ends_it() -> None:
    async with connected(hostile("hangs")) as connection:
        waiting = asyncio.create_task(connection.opened())
        await connection.close()
        with pytest.raises(McpServerError, match="it was stopped"):
            await waiting


@pytest.mark.slow
async def test_a_call_that_takes_too_long_is_an_error_and_the_connection_goes_on() -> None:
    async with connected(hostile()) as connection:
        await connection.opened()
        with pytest.raises(McpServerError, match=r"tool 'hang' of MCP server 'it' did not answer within 0\.05 s"):
            await connection.call("hang", {}, timeout=0.05)
        assert (await connection.call("echo", {})).text == "{}"


async def test_no_error_shows_a_secret() -> None:
    environment = {**os.environ, "SECRET": "s3cr3t-value"}
    async with connected(hostile(env={"KEY": "${SECRET}"}), environment) as connection:
        await connection.opened()
        with pytest.raises(McpServerError, match=r"KEY \*\*\* was not accepted(?s:.*)'KEY': '\*\*\*'") as raised:
            await connection.call("blab", {})
    assert "s3cr3t" not in f"{raised.value}{raised.value.stderr}"


async def test_a_variable_that_is_not_set_is_named_before_anything_starts() -> None:
    with pytest.raises(InvalidInputError, match=r"\$\{NO_SUCH_KEY\}, which is not set"):
        Connection("it", parse_params("it", hostile(env={"A": "${NO_SUCH_KEY}"})), {}, 1)


def test_the_reason_is_the_first_in_a_tree_of_errors() -> None:
    class Response:
        status_code, reason_phrase = 503, "Service Unavailable"

    failed = OSError("https://user:password@a.example")
    failed.response = Response()  # type: ignore[attr-defined]
    tree = ExceptionGroup("all", [ExceptionGroup("some", [ValueError("first")]), OSError("second")])
    assert _reason(tree) == "first"
    assert _reason(failed) == "HTTP 503 Service Unavailable"
    assert _reason(KeyError()) == "KeyError"
