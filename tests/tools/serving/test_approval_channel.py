"""The channel of approvals as hostile sessions and clients use it: floods, silence, answers to what is not pending."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cellblock import ApprovalChannel, ApprovalRequest
from cellblock.tools.approvals.broker import MAX_PENDING, Broker
from cellblock.tools.approvals.rules import Rules
from processes import eventually


class Socket:
    """As much of a WebSocket as the channel uses. It takes what is sent only while it `reads`."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.reads = asyncio.Event()
        self.answers: asyncio.Queue[str | None] = asyncio.Queue()
        self.refused = self.code = 0

    async def accept(self) -> None:
        return None

    async def reject(self, status: int, reason: str) -> None:
        self.refused = status

    async def send(self, text: str) -> None:
        await self.reads.wait()
        self.sent.append(json.loads(text))

    async def receive(self) -> str | None:
        return await self.answers.get()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        self.code = code
        self.answers.put_nowait(None)

    def answer(self, number: str, result: object) -> None:
        self.answers.put_nowait(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}))


@asynccontextmanager
async def connected(channel: ApprovalChannel) -> AsyncIterator[Socket]:
    socket = Socket()
    serving = asyncio.create_task(channel.connect(socket))  # type: ignore[arg-type]  # as much as is used
    await eventually(lambda: channel.open)
    yield socket
    socket.answers.put_nowait(None)
    await serving


@pytest.mark.slow
async def test_ten_thousand_requests_are_bounded_and_what_ends_early_is_not_sent() -> None:
    channel = ApprovalChannel(approval_required=True)
    broker = Broker(Rules(), channel.offer, timeout=None)
    async with connected(channel) as socket:
        calls = [asyncio.create_task(broker.decide("tool", "files", "read", {"n": n})) for n in range(10_000)]
        await eventually(lambda: sum(call.done() for call in calls) == 10_000 - MAX_PENDING)
        assert len(broker.pending) == MAX_PENDING
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        socket.reads.set()
        request = asyncio.create_task(channel.request("files", "write", {}))
        await eventually(lambda: any(sent.get("params", {}).get("tool_name") == "write" for sent in socket.sent))
        # The one that was on its way, its withdrawal, and the last one.
        assert len(socket.sent) <= 3
        socket.answer(socket.sent[-1]["id"], True)
        assert await request is True


async def test_large_requests_that_are_taken_back_are_not_kept_for_a_client_that_does_not_read() -> None:
    channel = ApprovalChannel(approval_required=True)
    async with connected(channel) as socket:
        for number in range(100):
            request = ApprovalRequest("files", "write", {"text": "x" * 100_000, "n": number})
            channel.offer(request)
            await asyncio.sleep(0)
            request.withdraw("the call was cancelled")
        assert not channel._unsent
        socket.reads.set()
        await eventually(lambda: socket.sent)
        assert len([sent for sent in socket.sent if sent["method"] == "approve"]) == 1


async def test_the_withdrawal_of_a_request_comes_after_the_request() -> None:
    channel = ApprovalChannel(approval_required=True)
    async with connected(channel) as socket:
        request = ApprovalRequest("files", "write", {})
        channel.offer(request)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        request.withdraw("the call was cancelled")
        socket.reads.set()
        await eventually(lambda: len(socket.sent) == 2)
        assert [sent["method"] for sent in socket.sent] == ["approve", "withdraw"]
