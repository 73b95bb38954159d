"""Metrics for Prometheus (text format 0.0.4)."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Request, Response

from cellblock.common.telemetry import prometheus
from cellblock.fronts.gateway.access import link_of, needs
from cellblock.fronts.gateway.bodies import CheckedRoute
from cellblock.operations.approvals import Pending
from cellblock.operations.sessions import About, List
from cellblock.service.store.tokens import Token

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

router = APIRouter(tags=["Service"], route_class=CheckedRoute)

_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


class Meter:
    """A counter of requests by status, and of their durations."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.requests: Counter[int] = Counter()
        self.below: Counter[float] = Counter()
        self.seconds = 0.0
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
            self._count(status, time.perf_counter() - begun)

    def _count(self, status: int, took: float) -> None:
        self.requests[status] += 1
        self.seconds += took
        self.below[next((bound for bound in _BOUNDS if took <= bound), float("inf"))] += 1

    def lines(self) -> list[str]:
        """Return the counts in the text format."""
        lines = [
            "# HELP cellblock_http_requests_total Requests that were answered.",
            "# TYPE cellblock_http_requests_total counter",
        ]
        lines += [
            f'cellblock_http_requests_total{{status="{status}"}} {count}' for status, count in sorted(self.requests.items())
        ]
        lines += [
            "# HELP cellblock_http_request_seconds How long they took.",
            "# TYPE cellblock_http_request_seconds histogram",
        ]
        total = 0
        for bound in (*_BOUNDS, float("inf")):
            total += self.below[bound]
            name = "+Inf" if bound == float("inf") else f"{bound:g}"
            lines.append(f'cellblock_http_request_seconds_bucket{{le="{name}"}} {total}')
        lines += [f"cellblock_http_request_seconds_sum {self.seconds:.6f}", f"cellblock_http_request_seconds_count {total}"]
        lines += gauge("cellblock_http_requests_running", "Requests that are worked on.", {"": self.running})
        return lines


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
    lines = meter.lines() + prometheus(about["figures"])
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
