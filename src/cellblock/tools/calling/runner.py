"""Calls of MCP tools through a tool server, for generated code in sessions and elsewhere. Standard library only.

In a session, environment variables give the address of its tool port: ``CELLBLOCK_TOOL_HOST``, ``CELLBLOCK_TOOL_PORT`` and,
if a token is required, ``CELLBLOCK_TOOL_TOKEN``. They are read on each call, because a module may be imported before they
are set. Elsewhere, ``TOOL_SERVER_HOST`` and ``TOOL_SERVER_PORT`` name a `ToolServer`, as in ipybox. Proxies in the
environment are not used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, time
from enum import Enum
from pathlib import PurePath
from typing import Any

from cellblock.errors import InvalidInputError, ToolRunnerError
from cellblock.tools.calling import pool
from cellblock.tools.calling.content import READ_RESOURCE, ToolImage, ToolOutcome, ToolResource

__all__ = ["ToolData", "ToolLink", "ToolRunner", "ToolRunnerError", "ToolText"]

Result = dict[str, Any] | str | None


class ToolText(str):
    """A text result with images or resources. The text of resources is part of it, below the tool's own text.

    Attributes:
        images: The images of the same result.
        resources: All other content of the result.
    """

    images: tuple[ToolImage, ...] = ()
    resources: tuple[ToolResource, ...] = ()


class ToolData(dict[str, Any]):
    """A structured result with images or resources.

    Attributes:
        images: The images of the same result.
        resources: All other content of the result.
    """

    images: tuple[ToolImage, ...] = ()
    resources: tuple[ToolResource, ...] = ()


class ToolRunner:
    """A caller of one MCP server's tools, through a `ToolServer` or the tool port of a session.

    Many threads and event loops can share one object. Up to 64 gathered calls are pending at once; the others wait.

    Example::

        runner = ToolRunner(
            server_name="fetch",
            server_params={"command": "uvx", "args": ["mcp-server-fetch"]},
        )
        result = await runner.run("fetch", {"url": "https://example.com"})
    """

    def __init__(
        self,
        server_name: str,
        server_params: Mapping[str, Any] | None = None,
        host: str | None = None,
        port: int | None = None,
        *,
        token: str | None = None,
    ) -> None:
        """Set up. The first call connects.

        Args:
            server_name: Name of the MCP server.
            server_params: Parameters of the server; None if it is registered. Sessions may not send any.
            host: Hostname of the tool server; by default this session's, or ``localhost``.
            port: Port of the tool server; by default this session's, or 8900.
            token: Bearer token of the tool server, if needed; by default this session's.
        """
        self._server = server_name
        self._params = None if server_params is None else dict(server_params)
        self._host = host
        self._port = port
        self._token = token

    async def run(self, tool_name: str, tool_args: Mapping[str, Any]) -> Result:
        """Call a tool.

        Args:
            tool_name: Name of the tool.
            tool_args: The arguments. Dates, enumerations, paths, sets and pydantic models are converted to JSON.

        Returns:
            The structured result as a `dict`, or the text, or None if there is neither. Images and resources of the result
            are its attributes `images` and `resources` (`ToolData`, `ToolText`); the text of resources is part of the text.

        Raises:
            ToolRunnerError: The tool failed, or approval was denied; the message has the reason.
        """
        return self._result(await self._send("POST", "/run", self._body(tool_name, tool_args)))

    def run_sync(self, tool_name: str, tool_args: Mapping[str, Any]) -> Result:
        """Call a tool and wait for its result: `run` for synchronous code.

        Args:
            tool_name: Name of the tool.
            tool_args: The arguments.

        Returns:
            As `run`.

        Raises:
            ToolRunnerError: The tool failed, or approval was denied; the message has the reason.
        """
        address = self._address()
        request = self._request("POST", "/run", self._body(tool_name, tool_args), address)
        try:
            answer = pool.send(address, request)
        except OSError as error:
            raise self._lost(address, error) from error
        return self._result(answer)

    async def reset(self) -> None:
        """Reset the tool server, stopping all started MCP servers. Sessions may not do this.

        Raises:
            ToolRunnerError: The tool server refused, or could not be reached.
        """
        _parsed(await self._send("PUT", "/reset", b""))

    async def approve(self, tool_name: str, tool_args: Mapping[str, Any]) -> None:
        """Ask a `ToolServer` to decide about an action that happens elsewhere, such as a command of a kernel.

        Args:
            tool_name: The action's name.
            tool_args: The action's arguments.

        Raises:
            ToolRunnerError: Approval was denied, or the tool server could not be reached; the message has the reason.
        """
        _parsed(await self._send("POST", "/approve", self._body(tool_name, tool_args)))

    async def _send(self, method: str, path: str, body: bytes) -> pool.Answer:
        address = self._address()
        try:
            return await pool.send_async(address, self._request(method, path, body, address))
        except OSError as error:
            raise self._lost(address, error) from error

    def _address(self) -> pool.Address:
        port = self._port or _variable("TOOL_PORT", "TOOL_SERVER_PORT") or 8900
        return self._host or _variable("TOOL_HOST", "TOOL_SERVER_HOST") or "localhost", int(port)

    def _body(self, tool_name: str, tool_args: Mapping[str, Any]) -> bytes:
        data = {"server_name": self._server, "tool": tool_name, "arguments": tool_args}
        if self._params is not None:
            data["server_params"] = self._params
        try:
            return json.dumps(data, separators=(",", ":"), allow_nan=False, default=_plain).encode("ascii")
        except (TypeError, ValueError, RecursionError) as error:
            raise ToolRunnerError(f"The arguments of {self._server}.{tool_name} are not valid JSON: {error}") from error

    def _request(self, method: str, path: str, body: bytes, address: pool.Address) -> bytes:
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        token = self._token or os.environ.get("CELLBLOCK_TOOL_TOKEN")
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: {host}:{address[1]}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *([f"Authorization: Bearer {token}"] if token else []),
        ]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body

    def _lost(self, address: pool.Address, error: OSError) -> ToolRunnerError:
        where = f"{address[0]}:{address[1]}"
        if isinstance(error, ConnectionRefusedError):
            return ToolRunnerError(f"There is no tool server at {where}; start a ToolServer, or name its host and port.")
        return ToolRunnerError(f"The connection to the tool server at {where} was lost: {error}")

    def _result(self, answer: pool.Answer) -> Result:
        data = _parsed(answer)
        result: Result = data.get("result")
        if not data.get("images") and not data.get("resources"):
            return result
        try:
            outcome = ToolOutcome.from_dict({**data, "is_error": False, "text": "", "structured": None})
        except InvalidInputError as error:
            raise ToolRunnerError(f"The tool server's answer is not valid: {error}") from error
        resources = tuple(map(self._readable, outcome.resources))
        more = (
            ToolData(result) if isinstance(result, dict) else ToolText("\n".join(filter(None, [result, *map(str, resources)])))
        )
        more.images, more.resources = outcome.images, resources
        return more

    def _readable(self, resource: ToolResource) -> ToolResource:
        """Return a link that can be read; return other resources unchanged."""
        if resource.text is not None or resource.data is not None or not resource.uri:
            return resource
        return ToolLink(resource.uri, resource.mime_type, resource.name, runner=self)


@dataclass(frozen=True, slots=True)
class ToolLink(ToolResource):
    """A link to a resource of a server, which can be read. The call is decided about like a call of a tool.

    Attributes:
        runner: The caller of the server.
    """

    runner: ToolRunner | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{ToolResource.__str__(self)[:-1]}; to read it, call read() of its entry in .resources]"

    def read(self) -> Result:
        """Return the text of the resource. Binary content is in its `images` and `resources`.

        Raises:
            ToolRunnerError: It cannot be read, or approval was denied.
        """
        assert self.runner is not None
        return self.runner.run_sync(READ_RESOURCE, {"uri": self.uri})

    async def read_async(self) -> Result:
        """Return the text of the resource, as `read`, for code that awaits calls."""
        assert self.runner is not None
        return await self.runner.run(READ_RESOURCE, {"uri": self.uri})


def _parsed(answer: pool.Answer) -> dict[str, Any]:
    try:
        data = json.loads(answer.body)
    except ValueError as error:
        raise ToolRunnerError(f"The tool server answered {answer.status} with something that is not JSON.") from error
    if not isinstance(data, dict):
        raise ToolRunnerError(f"The tool server answered {answer.status} with something that is not an object.")
    if "error" in data:
        raise ToolRunnerError(str(data["error"]))
    return data


def _variable(own: str, of_ipybox: str) -> str | None:
    return os.environ.get(f"CELLBLOCK_{own}") or os.environ.get(of_ipybox)


def _plain(value: Any) -> Any:
    """Convert a value to JSON data."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return list(value)
    if isinstance(value, date | time):  # datetime is a subclass of date
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PurePath):
        return str(value)
    if callable(dump := getattr(value, "model_dump", None)):  # a pydantic model
        return dump(mode="json", by_alias=True)
    raise TypeError(f"{type(value).__name__} cannot be expressed in JSON")
