"""The working directories of MCP servers, which code in sessions cannot write to.

A program loads files from its current directory that its arguments do not name: Python loads modules (``python -m``), npx
``node_modules`` and ``.npmrc``. The host's current directory is usually the workspace of its sessions, so files written by
a cell would run with the host's rights. A server therefore starts in an empty directory of its own, and relative paths in
its parameters are made absolute at registration.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from cellblock.common import config
from cellblock.tools.mcp.params import ServerParams, StdioServer
from cellblock.walls.sandbox.paths import is_inside
from cellblock.walls.sandbox.policy import PROTECTED, SECRET, Filesystem, Policy

_DOTTED = re.compile(r"\.\.?(/|$)")
_SCRIPT = re.compile(r"[^-].*\.([cm]?[jt]s|py|sh)")
_INTERPRETER = re.compile(r"python[\d.]*|node|bun|deno|uv|(ba)?sh")


def made_absolute(params: ServerParams, directory: str) -> ServerParams:
    """Return parameters whose meaning does not depend on the server's current directory.

    These become absolute: a command with a slash; arguments, values of options (``--key=value``) and variables that are
    ``.`` or ``..`` or start with ``./`` or ``../``; the script of an interpreter, if it exists; and all paths of a sandbox.
    Other arguments stay: ``files`` may be the name of a package for npx, and must not become a directory because a cell has
    created one with that name.

    Args:
        params: The parameters.
        directory: The directory for relative paths, absolute.
    """
    if not isinstance(params, StdioServer) or params.cwd is not None:
        return params
    if os.path.basename(params.command) == "srt":
        # srt reads its settings when it starts, and "." in them is its current directory. Its program runs in srt's
        # sandbox.
        return replace(params, cwd=directory, env={"PYTHONSAFEPATH": "1"} | dict(params.env))
    command = params.command
    runs_scripts = _INTERPRETER.fullmatch(os.path.basename(command)) is not None
    if "/" in command and not command.startswith("${"):
        command = _absolute(command, directory)

    def place(argument: str) -> str:
        name, equals, value = argument.partition("=") if argument.startswith("-") else ("", "", argument)
        if _DOTTED.match(value):
            return f"{name}{equals}{_absolute(value, directory)}"
        if runs_scripts and _SCRIPT.fullmatch(argument) and os.path.isfile(os.path.join(directory, argument)):
            return os.path.join(directory, argument)
        return argument

    env = {name: _absolute(value, directory) if _DOTTED.match(value) else value for name, value in params.env.items()}
    sandbox = None if params.sandbox is None else _placed_policy(params.sandbox, directory)
    return replace(params, command=command, args=tuple(map(place, params.args)), env=env, sandbox=sandbox)


def files_within(params: ServerParams, directory: str) -> list[str]:
    """Return the files below a directory that belong to a server, according to its command line.

    The interpreter and its packages do not count: a session cannot write to those.

    Args:
        params: The parameters, with absolute paths.
        directory: The directory.
    """
    if not isinstance(params, StdioServer):
        return []
    values = [shutil.which(params.command) or params.command, *(argument.rpartition("=")[2] for argument in params.args)]
    files = [os.path.join(params.cwd or "/", value) for value in values if "\0" not in value]
    found = [path for path in files if os.path.isfile(path) and _below(path, directory) and not _below(path, sys.prefix)]
    return list(dict.fromkeys(found))


@contextmanager
def empty_directory() -> Iterator[str]:
    """Create a directory for one server, removed with it. Directories left by a killed host are removed with the next one.

    Raises:
        OSError: No directory is protected from sessions and other users.
    """
    top = config.state_directory() / "servers"
    top.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    top.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(lock)
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"its directory {top} is writable by other users: chmod 700 {top}, or remove it")
        fcntl.flock(lock, fcntl.LOCK_EX)  # so that no process removes a new directory before it is locked
        _sweep(top)
        made = tempfile.mkdtemp(dir=top)
        used = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(used, fcntl.LOCK_EX)
    finally:
        os.close(lock)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(used)


def _sweep(top: Path) -> None:
    for entry in top.iterdir():
        with suppress(OSError):  # in use, or just removed
            descriptor = os.open(entry, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry, ignore_errors=True)
            finally:
                os.close(descriptor)


def _placed_policy(policy: Policy, directory: str) -> Policy:
    """Resolve a policy's relative paths from a directory; paths of the default policy mean the server's own directory."""
    if policy.filesystem == Filesystem():
        return policy

    def place(paths: Iterable[str]) -> Iterable[str]:
        fixed = ("/", "~", "${")
        return (p if p.startswith(fixed) else os.path.normpath(os.path.join(directory, p)) for p in paths)

    files = policy.filesystem
    own = [path for path in files.write if path == "."]
    write = dict.fromkeys((*own, *place(path for path in files.write if path != ".")))
    # As for a session, this is denied below this directory and below every directory that the policy names.
    unread = dict.fromkeys((*(name for name in files.deny_read if name in SECRET), *place(files.deny_read)))
    unwritten = dict.fromkeys((*files.deny_write, *place(path for path in files.deny_write if path not in PROTECTED)))
    placed = Filesystem(tuple(place(files.read)), tuple(write), tuple(unread), tuple(unwritten))
    return replace(policy, filesystem=placed)


def _absolute(path: str, directory: str) -> str:
    while _DOTTED.match(path):
        first, _, rest = path.partition("/")
        directory = os.path.dirname(directory) if first == ".." else directory
        path = rest.lstrip("/")
    return os.path.join(directory, path) if path else directory


def _below(path: str, directory: str) -> bool:
    directory = os.path.realpath(directory)
    # Both the link and its target: replacing either changes the executed program.
    ways = (os.path.realpath(path), os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)))
    return any(is_inside(way, directory) for way in ways)
