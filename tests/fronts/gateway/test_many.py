"""Many clients at once, and the death of what is between them and their sessions."""

from __future__ import annotations

import asyncio
import os
import signal

import httpx
import pytest

import cellblock
from cellblock import AsyncClient, DaemonError
from gateways import Gateway, own_gateway, token
from processes import eventually

pytestmark = pytest.mark.slow

CLIENTS, EXECUTIONS, SESSIONS = 200, 5, 20


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_of_a_thousand_executions_none_is_lost_and_none_mixed_up(gateway: Gateway, api: httpx.Client) -> None:
    for number in range(SESSIONS):
        api.post(f"/sessions/s{number}", json={"options": {"sandbox": False}})
    ran: list[str] = []

    async def run(number: int) -> None:
        async with AsyncClient(gateway.url, text) as client:
            for turn in range(EXECUTIONS):
                mark = f"{number}-{turn}"
                code = f"seen = globals().get('seen', 0) + 1\nprint({mark!r})\n{mark!r}"
                result = await client.execute(f"s{number % SESSIONS}", code)
                assert (result.output, result.return_value) == (f"{mark}\n", repr(mark))
                ran.append(mark)

    text = token("run")
    await asyncio.gather(*(run(number) for number in range(CLIENTS)))
    assert len({*ran}) == CLIENTS * EXECUTIONS
    seen = [int(cellblock.execute(f"s{number}", "seen").return_value or 0) for number in range(SESSIONS)]
    assert seen == [CLIENTS * EXECUTIONS // SESSIONS] * SESSIONS
    api.delete("/kernels")


async def test_a_gateway_that_is_killed_loses_nothing(gateway: Gateway, api: httpx.Client) -> None:
    text = token("run")
    with own_gateway() as first, first.client(text) as client:
        client.post("/sessions/kept/execute", json={"code": "x = 42"})
        number = client.post("/sessions/kept/executions", json={"code": "print(input())\nx", "stdin": True}).json()["id"]
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait()
    await eventually(lambda: api.post(f"/executions/{number}/input", json={"line": "on"}).json()["done"])
    async with AsyncClient(gateway.url, text) as again:
        assert (await again.wait(number)).return_value == "42"


async def test_a_client_whose_gateway_is_gone_hears_of_it(gateway: Gateway) -> None:
    with own_gateway() as gone:
        async with AsyncClient(gone.url, token("run")) as client:
            await client.get_or_create("kept")
            waiting = asyncio.create_task(client.execute("kept", "import time; time.sleep(60)"))
            await eventually(lambda: cellblock.status("kept").status == "running")
            os.kill(gone.process.pid, signal.SIGKILL)
            with pytest.raises(cellblock.OutcomeUnknownError, match="not known"):
                await waiting
            with pytest.raises(DaemonError, match="the gateway"):
                await client.status("kept")
    cellblock.destroy("kept")
