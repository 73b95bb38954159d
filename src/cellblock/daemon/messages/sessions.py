"""What clients ask about the daemon and its sessions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar

from cellblock.wire.record import record


@record
class Hello:
    """The first request on a connection. Answered by ``protocol``, ``version``, ``pid`` and ``started``."""

    op: ClassVar[str] = "hello"
    protocol: int
    version: str


@record
class About:
    """Get the status of the daemon.

    Answered by its ``pid``, that of the ``custodian``, its ``version``, ``protocol``, ``started`` and ``uptime``, how many
    ``clients`` and ``sessions`` there are, and ``running`` and ``waiting`` executions, ``memory`` in bytes, ``limits``,
    ``problems``, a list of texts, and ``failing``: why nothing new is run now, or an empty text.
    """

    op: ClassVar[str] = "about"


@record
class End:
    """End the daemon and all of its sessions.

    Attributes:
        keep: Whether the sessions stay listed; their kernels end, and with them their variables.
    """

    op: ClassVar[str] = "end"
    keep: bool = False


@record
class Create:
    """Make a session, or return the one of that name. Answered by a `SessionRecord`.

    Attributes:
        name: Its name; empty for one that nobody else has.
        options: Its options (`named.options`), as JSON data. They are ignored if there is a session of that name.
        tags: Labels, if it is made.
        fresh: Whether it is an error if there is one of that name.
        bound: Whether it ends with the connection that it is made on. It then has to be fresh.
    """

    op: ClassVar[str] = "create"
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    fresh: bool = False
    bound: bool = False


@record
class List:
    """List the sessions. Answered by a list of `SessionRecord`.

    Attributes:
        refresh: Whether to look first whether their kernels are alive.
    """

    op: ClassVar[str] = "list"
    refresh: bool = False


@record
class Status:
    """Get the status of a session. Answered by a `SessionRecord`. `session` is its name or id, here and below."""

    op: ClassVar[str] = "status"
    session: str


@record
class Restart:
    """Give a session a fresh kernel, without variables. Answered by a `SessionRecord`."""

    op: ClassVar[str] = "restart"
    session: str


@record
class Destroy:
    """End a session. Answered by whether there was one."""

    op: ClassVar[str] = "destroy"
    session: str


@record
class Wipe:
    """End all sessions. Answered by the list of their ids."""

    op: ClassVar[str] = "wipe"


@record
class Interrupt:
    """Stop what runs in a session. Answered by whether something ran, after the code has stopped.

    Attributes:
        session: The session.
        key: If it is given, only the execution that was submitted with this key is stopped, or kept from running.
    """

    op: ClassVar[str] = "interrupt"
    session: str
    key: str = ""


@record
class Complete:
    """Complete the code in the body. `cursor` is an index into it, -1 its end. Answered by ``matches``, ``start``, ``end``."""

    op: ClassVar[str] = "complete"
    session: str
    cursor: int = -1


@record
class Inspect:
    """Describe the name at a place of the code in the body. Answered by a text or null."""

    op: ClassVar[str] = "inspect"
    session: str
    cursor: int = -1
    detail: int = 0


@record
class History:
    """List the cells that a session ran, oldest first. Answered by a list of ``code``, ``status``, ``execution_count``."""

    op: ClassVar[str] = "history"
    session: str
    count: int = 1000
