"""Requests as spans, which continue the traces of their clients (``traceparent``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellblock.common import telemetry

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_CARRIED = {name.encode(): name for name in telemetry.CARRIED}
_METHODS = frozenset(("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"))


class Traced:
    """An application that answers each request in a span, if this process traces and no other instrumentation does.

    A gateway that does not trace forwards its clients' trace context.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        api = telemetry.api()
        if scope["type"] not in ("http", "websocket") or (api and api.get_current_span().get_span_context().is_valid):
            await self._app(scope, receive, send)
            return
        carried = {_CARRIED[name]: value.decode("latin-1") for name, value in scope["headers"] if name in _CARRIED}
        if api is None:
            with telemetry.passing_on(carried):
                await self._app(scope, receive, send)
            return
        method = scope.get("method", "GET")
        method = method if method in _METHODS else "_OTHER"
        attributes = {"http.request.method": method, "url.scheme": scope.get("scheme", "http")}
        with telemetry.incoming(carried), telemetry.Step(method, attributes, kind="SERVER") as step:

            async def watch(message: Message) -> None:
                if message["type"] == "http.response.start":
                    step.set("http.response.status_code", message["status"])
                    if message["status"] >= 500:
                        step.fail(str(message["status"]))
                await send(message)

            try:
                await self._app(scope, receive, watch)
            finally:
                if (route := _route(scope)) and step.span is not None:
                    step.set("http.route", route)
                    step.span.update_name(f"{method} {route}")


def _route(scope: Scope) -> str:
    """Return the route of a request's path, without names of sessions."""
    return str(getattr(scope.get("route"), "path", ""))
