"""What clients ask the daemon, as typed messages. docs/daemon.md describes them, and how they travel.

A request is a frame (`wire.frames`): its header has the request's ``type``, an ``id`` that the client chooses, and ``fields``;
its body is code, or the bytes of a file. The daemon answers with one frame of the type ``reply``, whose body is JSON data
(`wire.packed`), or raw bytes for a file. An answer in many parts has one such frame for each, which say that there is ``more``
to come, and an empty one at its end. Instead of any of them an ``error`` can come, which is the last. A daemon that is ending
answers with ``refused``: it has not accepted the request, which can be sent again to the next daemon.
"""

from __future__ import annotations

from typing import TypeAlias

from cellblock.daemon.messages.approvals import Allowed, Decide, Pending, Revoke
from cellblock.daemon.messages.checkpoints import Adopt, Checkpoints, Diff, DropCheckpoint, Fork, MakeCheckpoint, Restore, Undo
from cellblock.daemon.messages.executions import Answer, Cancel, Executions, Follow, Lookup, Source, Submit
from cellblock.daemon.messages.files import (
    MAX_REQUEST,
    Install,
    ListFiles,
    ReadFile,
    ReadPart,
    RemoveFile,
    WriteFile,
    WritePart,
)
from cellblock.daemon.messages.saving import Export, Load, Save, Variables
from cellblock.daemon.messages.sessions import (
    About,
    Complete,
    Create,
    Destroy,
    End,
    Hello,
    History,
    Inspect,
    Interrupt,
    List,
    Restart,
    Status,
    Wipe,
)

__all__ = [
    "MAX_REQUEST",
    "PROTOCOL",
    "About",
    "Adopt",
    "Allowed",
    "Answer",
    "Cancel",
    "Checkpoints",
    "Complete",
    "Create",
    "Decide",
    "Destroy",
    "Diff",
    "DropCheckpoint",
    "End",
    "Executions",
    "Export",
    "Follow",
    "Fork",
    "Hello",
    "History",
    "Inspect",
    "Install",
    "Interrupt",
    "List",
    "ListFiles",
    "Load",
    "Lookup",
    "MakeCheckpoint",
    "Pending",
    "ReadFile",
    "ReadPart",
    "RemoveFile",
    "Request",
    "Restart",
    "Restore",
    "Revoke",
    "Save",
    "Source",
    "Status",
    "Submit",
    "Undo",
    "Variables",
    "Wipe",
    "WriteFile",
    "WritePart",
    "may_repeat",
]

PROTOCOL = 5
"""The version of what is said here. A client and a daemon of different versions do not talk to each other."""

Request: TypeAlias = (
    Hello
    | About
    | End
    | Create
    | List
    | Status
    | Restart
    | Destroy
    | Wipe
    | Interrupt
    | Submit
    | Follow
    | Lookup
    | Source
    | Executions
    | Cancel
    | Answer
    | Complete
    | Inspect
    | History
    | ListFiles
    | ReadFile
    | WriteFile
    | ReadPart
    | WritePart
    | RemoveFile
    | Install
    | Pending
    | Decide
    | Allowed
    | Revoke
    | Save
    | Load
    | Export
    | Variables
    | MakeCheckpoint
    | Checkpoints
    | Restore
    | DropCheckpoint
    | Undo
    | Diff
    | Fork
    | Adopt
)

_REPEATABLE = (
    About,
    List,
    Status,
    Restart,
    Destroy,
    Wipe,
    Follow,
    Lookup,
    Source,
    Executions,
    Cancel,
    Complete,
    Inspect,
    History,
    ListFiles,
    ReadFile,
    ReadPart,
    Pending,
    Allowed,
    Save,
    Export,
    Variables,
    Checkpoints,
    Diff,
)


def may_repeat(request: Request) -> bool:
    """Return whether a request can be repeated if it is not known whether it was carried out: twice is the same as once."""
    match request:
        case Create(fresh=fresh):
            return not fresh
        case Submit(key=key) | Interrupt(key=key):
            return bool(key)
    return isinstance(request, _REPEATABLE)
