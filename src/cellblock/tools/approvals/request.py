"""Approval requests: pending calls, for the person or program that decides."""

from __future__ import annotations

import asyncio
import re
import secrets
import unicodedata
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Literal

from cellblock.errors import InvalidInputError, StateError
from cellblock.model.decisions import CallKind

Always = Literal["tool", "call"]
"""For the rest of the session: this tool with any arguments; or this tool with exactly these arguments."""

_NAME = re.compile(r"[\w./-]+")
"""The characters of ordinary names of servers and tools; other names are shown in quotation marks."""

_BLANK = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\U00016fe4\U0001d159"
    + "".join(map(chr, (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
)
"""Characters that Python would print but that render as nothing (Unicode: Default_Ignorable)."""

_OVERLAY = 1
"""The combining class of marks that strike through what they follow."""

_MOST_MARKS = 2
"""Maximum marks on one letter, as languages need them; more would reach into other lines."""

_MOST_BLANKS = 16
_BLANKS = re.compile(rf"(?: |\\[nrt]){{{_MOST_BLANKS + 1},}}")
"""Enough blanks, line ends and tabs to push the rest out of sight."""

State = Literal["pending", "accepted", "rejected", "withdrawn"]

Respond = Callable[[bool], Awaitable[None]]


class ApprovalRequest:
    """A call that waits for a decision: `accept` or `reject`.

    The first decision counts. Repeating it changes nothing, and the opposite raises `StateError`. A request is withdrawn if
    its call is cancelled or its time limit expires; a later decision then changes nothing. `response` returns the outcome.
    Use the request in its own event loop.

    Attributes:
        server_name: Name of the MCP server; ``shell``, ``network``, or a host for other requests.
        tool_name: Name of the tool.
        tool_args: A copy of the arguments: changing it does not change the execution. Commands have ``cmd`` (also called
            ``command``) and, if present, ``program``, ``cwd`` and ``environment``.
        id: An unguessable id, valid for one decision.
        kind: ``tool``, ``shell``, ``network``, ``http`` or ``server``.
        state: ``pending``, ``accepted``, ``rejected`` or ``withdrawn``.
        always: Which later calls the acceptance covers: ``tool``, ``call`` or None.
        reason: Why it was withdrawn or rejected.
        by: The decider, if known.
        changed: How the tool differs from its generated API, in a few words; empty if it does not.
    """

    def __init__(
        self,
        server_name: str,
        tool_name: str,
        tool_args: Mapping[str, Any],
        respond: Respond | None = None,
        *,
        kind: CallKind = "tool",
        changed: str = "",
        id: str | None = None,  # noqa: A002  # what it is called everywhere
    ) -> None:
        """Create a request.

        Args:
            server_name: Name of the MCP server.
            tool_name: Name of the tool.
            tool_args: The arguments.
            respond: Called once with the decision. If it raises, the decider gets the exception; the request stays pending.
            kind: ``tool``, ``shell``, ``network``, ``http`` or ``server``.
            changed: How the tool differs from its generated API.
            id: The id, if the other side has assigned one.
        """
        self.server_name = server_name
        self.tool_name = tool_name
        self.tool_args = dict(tool_args)
        if kind == "shell" and "command" in self.tool_args:
            self.tool_args["cmd"] = self.tool_args["command"]  # ipybox's name
        self.kind: CallKind = kind
        self.changed = changed
        self.id = id or secrets.token_hex(16)
        self.state: State = "pending"
        self.always: Always | None = None
        self.reason = ""
        self.by = ""
        self._respond = respond
        self._over = asyncio.Event()
        self._callbacks: list[Callable[[ApprovalRequest], object]] = []

    async def accept(self, always: Always | None = None) -> None:
        """Allow the call.

        Args:
            always: ``tool`` also covers later calls of this tool; ``call`` covers later calls with exactly these arguments.
                Both apply to the rest of the session.

        Raises:
            InvalidInputError: `always` is invalid.
            StateError: The request was rejected before.
        """
        if always not in (None, "tool", "call"):
            raise InvalidInputError(f"always must be 'tool', 'call' or None, not {always!r}.")
        await self._decide("accepted", always)

    async def reject(self, reason: str = "") -> None:
        """Deny the call: it fails in the code that made it.

        Args:
            reason: The reason, for that code and the readers of its error.

        Raises:
            StateError: The request was accepted before.
        """
        if self.state == "pending":
            self.reason = reason
        await self._decide("rejected", None)

    async def response(self) -> bool:
        """Wait for the decision.

        Returns:
            Whether the call was accepted; False also if the request was withdrawn.
        """
        await self._over.wait()
        return self.state == "accepted"

    def withdraw(self, reason: str) -> None:
        """Withdraw a pending request, on behalf of the code that made it.

        Args:
            reason: The reason, for the waiting code.
        """
        if self.state == "pending":
            self.reason = reason
            self.settle("withdrawn")

    def settle(self, state: State, always: Always | None = None) -> None:
        """Record a decision made elsewhere, without calling `respond`, on behalf of the code that made the request.

        Args:
            state: The decision.
            always: Which later calls the decision covers.
        """
        if self.state == "pending":
            self.state, self.always = state, always
            self._finish()

    def add_done_callback(self, callback: Callable[[ApprovalRequest], object]) -> None:
        """Call a function once the request is decided or withdrawn.

        Args:
            callback: The function, called with the request.
        """
        self._callbacks.append(callback)

    def _finish(self) -> None:
        self._over.set()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    async def _decide(self, state: State, always: Always | None) -> None:
        if self.state in (state, "withdrawn"):
            return
        if self.state != "pending":
            raise StateError(f"The request for {_shown(self.server_name)}.{_shown(self.tool_name)} was already {self.state}.")
        # Before the response is sent, so that no second one can be sent meanwhile.
        self.state, self.always = state, always
        try:
            if self._respond is not None:
                await self._respond(state == "accepted")
        except BaseException:  # also a cancellation: the request can be answered again
            self.state, self.always = "pending", None
            raise
        self._finish()

    def __str__(self) -> str:
        # Others can choose names: these must not look like more than a name, or control a terminal.
        shown = {name: value for name, value in self.tool_args.items() if not (self.kind == "shell" and name == "cmd")}
        names = (name if name.isidentifier() else repr(name) for name in shown)
        arguments = ", ".join(f"{name}={value!r}" for name, value in zip(names, shown.values(), strict=True))
        changed = f" (the tool has changed: {self.changed})" if self.changed else ""
        return visible(f"{_shown(self.server_name)}.{_shown(self.tool_name)}({arguments}){changed}")

    def __repr__(self) -> str:
        return f"<ApprovalRequest {self} {self.state}>"


def visible(text: str) -> str:
    """Escape hidden parts of a text: characters that are invisible, or overprint others.

    These are control and format characters (zero width, bidirectional, tags), blank letters, and marks beyond the second on
    a letter. Long runs of blanks and line ends, which could hide text behind them, are replaced by their length.

    Args:
        text: The text. Line ends are escaped, too.
    """
    if not text.isascii() or not text.isprintable():
        text = "".join(_visible(text))
    return _BLANKS.sub(_count, text)


def _visible(text: str) -> Iterator[str]:
    marks = 0
    for character in text:
        kind = unicodedata.category(character)
        marks = marks + 1 if kind in ("Mn", "Me") else 0
        hidden = not character.isprintable() or character in _BLANK or unicodedata.combining(character) == _OVERLAY
        yield character.encode("unicode_escape").decode() if hidden or kind == "Me" or marks > _MOST_MARKS else character


def _count(blanks: re.Match[str]) -> str:
    """Return the replacement of a long run: ``[4,200 spaces]``."""
    spaces, tabs = blanks[0].count(" "), blanks[0].count("\\t")
    ends = (len(blanks[0]) - spaces) // 2 - tabs
    named = ((spaces, "space"), (tabs, "tab"), (ends, "line end"))
    counted = [f"{count:,} {name}{'s' * (count > 1)}" for count, name in named if count]
    return f"[{', '.join(counted)}]"


def _shown(name: str) -> str:
    return name if _NAME.fullmatch(name) else repr(name)
