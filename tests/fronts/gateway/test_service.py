"""What the gateway says of itself, and of the daemon behind it."""

from __future__ import annotations

import os
import resource
import signal

import httpx
import pytest

from cellblock.service.daemon import control
from gateways import Gateway
from processes import eventually

pytestmark = pytest.mark.slow


def daemon() -> int:
    """The process of the daemon."""
    about = control.status()
    assert about is not None
    return int(about["pid"])


async def test_the_health_check_says_that_nothing_can_be_stored_and_recovers_by_itself(
    gateway: Gateway, api: httpx.Client
) -> None:
    number = daemon()
    before = resource.prlimit(number, resource.RLIMIT_FSIZE)
    with gateway.client() as anybody:
        assert anybody.get("/health").json() | {"version": ""} == {
            "status": "ok",
            "service": "cellblock",
            "version": "",
            "problem": "",
        }
        resource.prlimit(number, resource.RLIMIT_FSIZE, (100, before[1]))
        try:
            assert api.post("/sessions/full/execute", json={"code": "1"}).status_code == 503
            await eventually(lambda: anybody.get("/health").status_code == 503)
            answer = anybody.get("/health").json()
            assert (answer["status"], answer["problem"]) == ("failing", "nothing can be stored: the disk is full")
        finally:
            resource.prlimit(number, resource.RLIMIT_FSIZE, before)
        # Nobody runs code meanwhile: a load balancer sends nothing to an instance that is not well.
        await eventually(lambda: anybody.get("/health").status_code == 200)


async def test_the_health_check_says_that_the_daemon_does_not_answer(gateway: Gateway) -> None:
    number = daemon()
    with gateway.client() as anybody:
        os.kill(number, signal.SIGSTOP)
        try:
            await eventually(lambda: "has not answered" in anybody.get("/health").json()["problem"], 30)
        finally:
            os.kill(number, signal.SIGCONT)
        await eventually(lambda: anybody.get("/health").json()["status"] == "ok", 30)
