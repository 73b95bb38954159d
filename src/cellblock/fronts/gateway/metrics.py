"""Metrics for Prometheus (text format 0.0.4)."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Request, Response

from cellblock.common.telemetry import COUNTERS, HISTOGRAMS, Figures, prometheus
from cellblock.fronts.gateway.access import link_of, needs
from cellblock.fronts.gateway.bodies import CheckedRoute
from cellblock.operations.approvals import Pending
from cellblock.operations.sessions import About, List
from cellblock.service.store.tokens import Token

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

router = APIRouter(tags=["Service"], route_class=CheckedRoute)

_REQUESTS = {"cellblock.http.requests": "Requests that were answered."}
_SECONDS = {"cellblock.http.request": "How long they took."}


class Meter:
    """A counter of requests by status, and of their durations."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.figures = Figures()
        self.running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["cellblock.meter"] = self
        status = 500
        begun = time.perf_counter()

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self.running += 1
        try:
            await self._app(scope, receive, watch)
        finally:
            self.running -= 1
            self.figures.add("cellblock.http.requests", 1, (("status", str(status)),))
            self.figures.observe("cellblock.http.request", time.perf_counter() - begun, ())

    def lines(self) -> list[str]:
        """Return the counts in the text format."""
        lines = prometheus(self.figures.as_data(), _SECONDS, _REQUESTS)
        return lines + gauge("cellblock_http_requests_running", "Requests that are worked on.", {"": self.running})


@router.get(
    "/metrics",
    response_class=Response,
    summary="What Prometheus collects",
    responses={
        200: {"description": "Prometheus' text format.", "content": {"text/plain": {}}},
    },
)
async def metrics(request: Request, _: Annotated[Token, Depends(needs("read"))]) -> Response:
    """Return counts of requests, sessions, cells, tool calls and decisions since the gateway and the daemon began."""
    meter: Meter = request.scope["cellblock.meter"]
    link = link_of(request)
    states = Counter(record["status"] for record in await link.call(List()))
    waiting = len(await link.call(Pending()))
    about = await link.call(About())
    lines = meter.lines() + prometheus(about["figures"], HISTOGRAMS, COUNTERS)
    lines += gauge(
        "cellblock_sessions",
        "Sessions by status.",
        {f'{{status="{name}"}}': states[name] for name in ("idle", "running", "dead")},
    )
    lines += gauge("cellblock_approvals_pending", "Calls that wait for a decision.", {"": waiting})
    lines += gauge("cellblock_memory_bytes", "Memory of all sessions together.", {"": about["memory"]})
    return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


def gauge(name: str, text: str, values: dict[str, int]) -> list[str]:
    """Return the lines of a gauge; the keys of `values` are its labels."""
    return [f"# HELP {name} {text}", f"# TYPE {name} gauge", *(f"{name}{labels} {value}" for labels, value in values.items())]
