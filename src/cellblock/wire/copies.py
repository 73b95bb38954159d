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
    """Create a kernel from a copy, with the attached descriptors, the same as for `Fork`.

    Attributes:
        number: The copy's number.
        env: Changed variables.
        listeners: Its listeners, by name.
        stay_in: As for `Setup`.
        seed: The seed of random generators; None for a new seed. With `same_random_state`, it seeds only generators without a
            state.
        same_random_state: Whether the generators continue from the copy's state.
        to_inspect: Whether the kernel is only inspected, so that no background code continues.
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
    """End all copies but some. The answer for each missing one is `Gone`.

    Attributes:
        numbers: The copies to keep. A host that takes over a session knows no others.
    """

    op: ClassVar[str] = "keep"
    numbers: tuple[int, ...]


# -- init → host ---------------------------------------------------------------------------------------------------------


@record
class Copied:
    """A copy exists, and has registered itself. Copies send this to init, with a connection to each."""

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
    """Init → copy: create a kernel, with the attached channel and outputs. Other fields are as in `Resume`.

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
    """Copy → init: the sender is the kernel that `Start` requested."""

    op: ClassVar[str] = "taken"
    kernel: int


@record
class Untaken:
    """Copy → init: the kernel that `Start` requested could not be created."""

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
