"""Advice about a file that a sandbox protects from a cell: why, and what to do instead."""

from __future__ import annotations

import re

from cellblock.walls.sandbox.policy import ENV, PROTECTED

_ERRORS = frozenset(("PermissionError", "IsADirectoryError", "FileExistsError", "NotADirectoryError", "OSError"))
_PATH = re.compile(r"\[Errno \d+\] [^:]{1,100}: '([^']{1,4096})'(?: -> '([^']{1,4096})')?")
_READ_ONLY = "Read-only file system"
_IN_GIT = re.compile(r"[\s'/]\.git/[^\n]{0,4096}Read-only file system")

_OF_ENV = f"{ENV} holds secrets of this project: its sessions can neither read, write nor make it"
_OF_GIT = (
    "a session can read .git, not write it: its hooks and settings make git run programs outside the sandbox. Commit in a "
    "copy (git clone . /tmp/copy), or leave it to a person; filesystem.allowGitConfig in a sandbox_config allows it"
)


def advice(name: str | None, message: str) -> str:
    """Return advice for an exception; empty if it is not about a protected name.

    Args:
        name: The exception's class.
        message: Its message.
    """
    if name not in _ERRORS or (match := _PATH.fullmatch(message)) is None:
        return ""
    for path in filter(None, match.groups()):
        parts = path.split("/")
        if parts[-1] == ENV:
            return _OF_ENV
        if ".git" in parts and _READ_ONLY in message:
            return _OF_GIT
        protected = next((part for part in parts if part in PROTECTED), None)
        if protected is not None:
            return f"programs outside the sandbox run what {protected} says: a session cannot change or make it here"
    return ""


def advice_on(output: str) -> str:
    """Return advice for a cell's output; empty if it shows no git that was kept from writing.

    Args:
        output: The printed text.
    """
    return _OF_GIT if _READ_ONLY in output and _IN_GIT.search(output) else ""
