"""Reads a client's messages, and answers those that the SDK ignores because it cannot decode them.

JavaScript programs cut texts within a character, and send half of it as an escape, which JSON decoders refuse. A client whose
request is ignored waits until its own limit.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, BinaryIO

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCNotification, jsonrpc_message_adapter
from pydantic import ValidationError

from cellblock.model.untrusted import parse_json
from cellblock.tools.mcp import undecodable

if TYPE_CHECKING:
    from mcp.shared._stream_protocols import WriteStream
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_MAX_REPAIRED = 16 * 1024 * 1024
"""Bytes of a body above which it is passed on unchanged."""

_ID = rb'"id"\s{0,9}:\s{0,9}(\d{1,18}|"[^"\\]{1,100}")\s{0,9}'
_VERSION = rb'"jsonrpc"\s{0,9}:\s{0,9}"2\.0"\s{0,9}'
_METHOD = rb'"method"\s{0,9}:\s{0,9}"[^"\\]{1,100}"\s{0,9}'
# Where clients put the id of a request: before or after the parameters. Within them, an id could be anything.
_AT_HEAD = re.compile(rb"\s{0,9}\{\s{0,9}(?:(?:" + _VERSION + rb"|" + _METHOD + rb"),\s{0,9}){0,2}" + _ID + rb"[,}]")
_AT_TAIL = re.compile(rb",\s{0,9}" + _ID + rb"(?:,\s{0,9}" + _VERSION + rb")?\}\s{0,9}$")


class Input:
    """The lines of a client, repaired, for the SDK. Lines without a message are answered, and left out.

    Attributes:
        answers: The stream of messages to the client, set before the first line is read.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = anyio.wrap_file(file)
        self.answers: WriteStream[SessionMessage]

    async def __aiter__(self) -> AsyncIterator[str]:
        async for line in self._file:
            message = undecodable.repaired(line.strip())
            if not message:
                continue
            try:
                said = jsonrpc_message_adapter.validate_json(message, by_name=False)
            except ValidationError as error:
                if _answers(message) and (instead := undecodable.instead(message, error)) is not None:
                    yield instead.message.model_dump_json(by_alias=True, exclude_unset=True)
                else:
                    await self.answers.send(SessionMessage(refusal(message)))
            else:
                if isinstance(said, JSONRPCNotification) and b'"id"' in message and "id" in json.loads(message):
                    await self.answers.send(SessionMessage(refusal(message)))  # an id that the SDK does not accept
                else:
                    yield message.decode()


def _answers(message: bytes) -> bool:
    """Return whether a message looks like the client's answer to a question of this server."""
    return b'"method"' not in message and (b'"result"' in message or b'"error"' in message)


def refusal(message: bytes) -> JSONRPCError:
    """Return the answer to a message that is not a request, with its id if it can be found."""
    number: object
    try:
        said = parse_json(message, what="the message")
        code, why = INVALID_REQUEST, "this is not a JSON-RPC request"
        if isinstance(said, list):
            why = "this version of the protocol has no batches: send one message per line"
        number = said.get("id") if isinstance(said, dict) else None
    except ValueError as error:
        code, why = PARSE_ERROR, str(error)
        found = _AT_HEAD.match(message[:1000]) or _AT_TAIL.search(message[-1000:])
        number = None if found is None else _number(found[1])
    known = number if isinstance(number, int | str) and not isinstance(number, bool) else None
    return JSONRPCError(jsonrpc="2.0", id=known, error=ErrorData(code=code, message=why))


def _number(written: bytes) -> int | str:
    return int(written) if written.isdigit() else written.decode("utf-8", "replace").strip('"')


def with_repaired_bodies(app: ASGIApp) -> ASGIApp:
    """Return an application that gets repaired messages over HTTP."""

    async def repairing(scope: Scope, receive: Receive, send: Send) -> None:
        body, passed = bytearray(), False

        async def read() -> Message:
            nonlocal passed
            while True:
                message = await receive()
                if passed or message["type"] != "http.request":
                    return message
                body.extend(message.get("body", b""))
                if len(body) > _MAX_REPAIRED or not message.get("more_body", False):
                    passed = True
                    whole = bytes(body) if message.get("more_body", False) else undecodable.repaired(bytes(body))
                    return {**message, "body": whole}

        await app(scope, read if scope["type"] == "http" else receive, send)

    return repairing


def take_standard_input() -> BinaryIO:
    """Take standard input away from handlers and child processes, and return it."""
    taken = os.fdopen(fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3), "rb", closefd=False)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return taken
