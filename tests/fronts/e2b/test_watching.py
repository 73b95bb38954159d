"""Watched directories of E2B's clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cellblock.fronts.e2b.watching import Watchers

pytestmark = pytest.mark.slow


async def test_a_stream_begins_with_its_start_however_long_the_session_takes_to_start() -> None:
    async def ready() -> str:
        await asyncio.sleep(0.05)
        return "session"

    async def follow(_: object) -> AsyncGenerator[dict[str, str], None]:
        yield {"kind": "watching"}
        yield {"kind": "created", "path": "new"}
        await asyncio.sleep(60)

    contexts = SimpleNamespace(workspace=SimpleNamespace(inner=str), ready=ready)
    watchers = Watchers(cast("Any", SimpleNamespace(follow=follow)), cast("Any", contexts))
    found: list[dict[str, Any]] = []
    async with aclosing(watchers.events(".", recursive=False, every=0.01)) as events:
        async for event in events:
            found.append(event)
            if len(found) == 3:
                break
    assert found == [
        {"start": {}},
        {"filesystem": {"name": "new", "type": "EVENT_TYPE_CREATE"}},
        {"keepalive": {}},
    ]
