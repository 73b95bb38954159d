"""Control messages about copies of kernels, between host, init and copies (docs/wire.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, TypeAlias

from cellblock.wire.control import Listener
from cellblock.wire.datagrams import Incoming
from cellblock.wire.record import record

REPLACED = ".cellblock-restore-"
"""Prefix of the folder in a workspace that has the files that are being replaced, while a kernel is made from a copy."""

# -- host → init ---------------------------------------------------------------------------------------------------------


@record
class Resume:
    """Make a kernel from a copy, with the descriptors that come along: those of `Fork`.

    Attributes:
        number: The copy's.
        env: Variables that change.
        listeners: Its listeners, by name.
        stay_in: As for `Setup`.
        seed: The seed of random generators; None: a new one. If they continue, only those without a state use it.
        same_random_state: Whether they continue from the copy's state.
        to_inspect: Whether it is only inspected: nothing continues that the code has left running.
    """

    op: ClassVar[str] = "resume"
    number: int
    env: Mapping[str, str]
    listeners: Mapping[str, Listener]
    stay_in: str | None
    seed: int | None
    same_random_state: bool
    to_inspect: bool


@record
class Drop:
    """End a copy."""

    op: ClassVar[str] = "drop"
    number: int


@record
class Keep:
    """End all copies but some. For each of these that is not there, the answer is `Gone`.

    Attributes:
        numbers: Those that stay. A host that takes over a session knows no others.
    """

    op: ClassVar[str] = "keep"
    numbers: tuple[int, ...]


# -- init → host ---------------------------------------------------------------------------------------------------------


@record
class Copied:
    """A copy exists, and has reported itself. Copies send this to init, with a connection to each."""

    op: ClassVar[str] = "copied"
    number: int


@record
class Gone:
    """A copy has ended."""

    op: ClassVar[str] = "gone"
    number: int


# -- init ↔ copies of a worker -------------------------------------------------------------------------------------------


@record
class Start:
    """Init → copy: make a kernel, with the channel and the outputs that come along. See `Resume`.

    Attributes:
        kernel: The kernel's number, for `Taken`.
    """

    op: ClassVar[str] = "start"
    kernel: int
    env: Mapping[str, str]
    stay_in: str | None
    seed: int | None
    same_random_state: bool
    to_inspect: bool


@record
class Taken:
    """Copy → init: the kernel that `Start` asked for is the process that sends this."""

    op: ClassVar[str] = "taken"
    kernel: int


@record
class Untaken:
    """Copy → init: the kernel that `Start` asked for could not be made."""

    op: ClassVar[str] = "untaken"
    kernel: int


# -- who may send which --------------------------------------------------------------------------------------------------

ToFamily: TypeAlias = Resume | Drop | Keep
FromFamily: TypeAlias = Copied | Gone
FromCopy: TypeAlias = Copied | Taken | Untaken

TO_FAMILY: Incoming[ToFamily] = Incoming(Resume, Drop, Keep)
FROM_FAMILY: Incoming[FromFamily] = Incoming(Copied, Gone)
TO_COPY: Incoming[Start] = Incoming(Start)
FROM_COPY: Incoming[FromCopy] = Incoming(Copied, Taken, Untaken)
