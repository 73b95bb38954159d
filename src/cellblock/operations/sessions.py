"""The daemon and its sessions, and what an editor asks a session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from cellblock.operations.base import Request

if TYPE_CHECKING:
    from cellblock.model.sessions import SessionRecord
    from cellblock.operations.data import Data


class Hello(Request[dict[str, Any]], op="hello"):
    """The first request on a connection. Answered by ``protocol``, ``version``, ``pid`` and ``started``."""

    protocol: int
    version: str


class About(Request[dict[str, Any]], op="about", repeatable=True):
    """Get the status of the daemon.

    Answered by its ``pid``, that of the ``custodian``, its ``version``, ``protocol``, ``started`` and ``uptime``, how many
    ``clients`` and ``sessions`` there are, and ``running`` and ``waiting`` executions, ``memory`` in bytes, ``limits``,
    ``problems``, a list of texts, and ``failing``: why nothing new is run now, or an empty text.
    """


class End(Request[bool], op="end"):
    """End the daemon and all of its sessions.

    Attributes:
        keep: Whether the sessions stay listed; their kernels end, and with them their variables.
    """

    keep: bool = False


class Create(Request["Data[SessionRecord]"], op="create"):
    """Make a session, or return the one of that name.

    Attributes:
        name: Its name; empty for one that nobody else has.
        options: Its options (`named.options`), as JSON data. They are ignored if there is a session of that name.
        tags: Labels, if it is made.
        fresh: Whether it is an error if there is one of that name.
        bound: Whether it ends with the connection that it is made on. It then has to be fresh.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    fresh: bool = False
    bound: bool = False

    @property
    def may_repeat(self) -> bool:
        """See `Request`: a session that is there already is returned."""
        return not self.fresh


class List(Request["list[Data[SessionRecord]]"], op="list", repeatable=True):
    """List the sessions.

    Attributes:
        refresh: Whether to look first whether their kernels are alive.
    """

    refresh: bool = False


class Status(Request["Data[SessionRecord]"], op="status", repeatable=True):
    """Get the status of a session. `session` is its name or id, here and below."""

    session: str


class Restart(Request["Data[SessionRecord]"], op="restart", repeatable=True):
    """Give a session a fresh kernel, without variables."""

    session: str


class Destroy(Request[bool], op="destroy", repeatable=True):
    """End a session. Answered by whether there was one."""

    session: str


class Wipe(Request[list[str]], op="wipe", repeatable=True):
    """End all sessions. Answered by the list of their ids."""


class Interrupt(Request[bool], op="interrupt"):
    """Stop what runs in a session. Answered by whether something ran, after the code has stopped.

    Attributes:
        session: The session.
        key: If it is given, only the execution that was submitted with this key is stopped, or kept from running.
    """

    session: str
    key: str = ""

    @property
    def may_repeat(self) -> bool:
        """See `Request`: without a key, it could stop what begins meanwhile."""
        return bool(self.key)


class Complete(Request[dict[str, Any]], op="complete", repeatable=True):
    """Complete the code in the body. `cursor` is an index into it, -1 its end. Answered by ``matches``, ``start``, ``end``."""

    session: str
    cursor: int = -1


class Inspect(Request[str | None], op="inspect", repeatable=True):
    """Describe the name at a place of the code in the body. Answered by a text or null."""

    session: str
    cursor: int = -1
    detail: int = 0


class History(Request[list[dict[str, Any]]], op="history", repeatable=True):
    """List the cells that a session ran, oldest first. Answered by a list of ``code``, ``status``, ``execution_count``."""

    session: str
    count: int = 1000
