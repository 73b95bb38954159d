"""Large results: they are taken out of their messages by a program, kept, and handed on as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import pytest

from cellblock.tools.mcp import large
from cellblock.tools.mcp.condense import LARGE
from cellblock.tools.mcp.large import LargeResults, NotJsonError, RefusedMessageError
from processes import below, eventually

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

ROWS = {"n": [{"n": number} for number in range(12_000)]}


def answer(value: Any, **more: Any) -> bytes:
    result = {"content": [], "structuredContent": value, **more}
    return json.dumps({"jsonrpc": "2.0", "id": 7, "result": result}).encode()


async def test_a_large_result_is_kept_as_json_until_its_call_returns() -> None:
    results = LargeResults()
    short = await results.condense(answer(ROWS))
    meta = json.loads(short)["result"]["_meta"]
    assert len(short) < 200
    value = results.take(meta)
    assert value is not None
    assert json.loads(value) == ROWS
    with pytest.raises(ValueError, match="too many large results at once"):
        results.take(meta)


async def test_what_is_not_large_or_no_result_is_decoded_by_others() -> None:
    results, small = LargeResults(), answer({"n": 1})
    listed = json.dumps({"id": 1, "result": {"tools": ["," * 30_000]}}).encode()
    assert await results.condense(small) is small
    assert await results.condense(listed) is listed
    assert results.take(None) is results.take({"other": 1}) is None


def test_a_server_cannot_name_a_result() -> None:
    cases: list[dict[str, Any]] = [{LARGE: "guessed"}, {LARGE: 1}, {LARGE: []}]
    for meta in cases:
        with pytest.raises(ValueError, match="too many large results"):
            LargeResults().take(meta)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (answer(ROWS), "more than 10000 values"),
        (json.dumps({"id": 1, "result": {"tools": [[]] * 20_001}}).encode(), "more than 5000 values"),
        (answer({}, content=[5] * 20_001), "more than 5000 values"),
    ],
    ids=["a result", "something else", "what is left of a result"],
)
async def test_values_have_limits(monkeypatch: pytest.MonkeyPatch, message: bytes, said: str) -> None:
    monkeypatch.setattr(large, "MAX_VALUES", 5000)
    if message == answer(ROWS):
        monkeypatch.setattr(large, "MAX_VALUES_OF_A_RESULT", 10_000)
    with pytest.raises(RefusedMessageError, match=f"{said}: request less data"):
        await LargeResults().condense(message)


NESTED = pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python 3.14 reads JSON that is nested as deeply as this")


@pytest.mark.parametrize(
    "message",
    [pytest.param(b"," * 30_000, id="no JSON"), pytest.param(b"[" * 30_000 + b"]" * 30_000, id="nested", marks=NESTED)],
)
async def test_what_cannot_be_decoded_is_refused(message: bytes) -> None:
    with pytest.raises(NotJsonError, match="not valid JSON, or nested too deeply"):
        await LargeResults().condense(message)


@pytest.mark.slow
async def test_results_that_nobody_takes_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    results, message = LargeResults(), answer(ROWS)
    monkeypatch.setattr(large, "_MAX_KEPT", 2 * len(message))
    metas = [json.loads(await results.condense(message))["result"]["_meta"] for _ in range(4)]
    with pytest.raises(ValueError, match="too many large results"):
        results.take(metas[0])
    assert results.take(metas[3]) is not None


@pytest.mark.parametrize("how", ["cancelled", "late"])
async def test_the_program_ends_with_who_waits_for_it(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    before = {*below(os.getpid())}
    if how == "late":
        monkeypatch.setattr(large, "_SECONDS", 0.0)
        with pytest.raises(RefusedMessageError, match="takes too long to decode"):
            await LargeResults().condense(answer(ROWS))
    else:
        waiting = asyncio.create_task(LargeResults().condense(answer(ROWS)))
        await eventually(lambda: {*below(os.getpid())} - before)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert {*below(os.getpid())} <= before
