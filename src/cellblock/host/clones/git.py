"""Runs git on the host: in the user's repository, or in a new one, but never in a clone, whose settings a session writes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Collection
from typing import IO, TYPE_CHECKING

from cellblock.common import config
from cellblock.errors import StateError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST = 32 * 2**20
"""Maximum bytes of an output of git."""

_PATIENCE = 300.0
_SHOWN = 1000
_MEMORY = 4 * 2**20  # KiB: a small pack can claim objects of any size

# No program of a repository runs, and names that a file system takes for .git are refused on every one.
_ALWAYS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.protectHFS=true",
    "core.protectNTFS=true",
    "gc.auto=0",
    "maintenance.auto=false",
    "submodule.recurse=false",
    "transfer.fsckObjects=true",
    "fetch.fsckObjects=true",
    "fetch.writeCommitGraph=false",
    "protocol.allow=never",
    "protocol.file.allow=always",
)
_LIMITED = ("core.bigFileThreshold=16m", "core.packedGitLimit=512m", "core.packedGitWindowSize=64m", "pack.threads=1")


class GitError(StateError):
    """git on the host has failed.

    Attributes:
        status: Its exit status.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def run_git(
    directory: str,
    *arguments: str,
    data: bytes | IO[bytes] = b"",
    accept: Collection[int] = (0,),
    untrusted: bool = False,
) -> bytes:
    """Run git in a directory, and return its output.

    Args:
        directory: The directory.
        arguments: Its arguments.
        data: Its standard input.
        accept: The exit statuses of success.
        untrusted: Whether it reads a session's objects: its memory is limited, and the user's settings do not apply.

    Raises:
        GitError: It fails, takes too long, or its output is too large.
        UnsupportedError: git is not installed.
    """
    settings = [part for setting in (*_ALWAYS, *(_LIMITED if untrusted else ())) for part in ("-c", setting)]
    command = ["git", *settings, "-C", directory, *arguments]
    if untrusted:
        command = ["/bin/sh", "-c", f'ulimit -v {_MEMORY} && exec "$@"', "sh", *command]
    with tempfile.TemporaryFile() as errors, contextlib.ExitStack() as stack:
        if isinstance(data, bytes):
            file = stack.enter_context(tempfile.TemporaryFile())
            file.write(data)
            file.seek(0)
            data = file
        try:
            process = subprocess.Popen(
                command, stdin=data, stdout=subprocess.PIPE, stderr=errors, env=_environment(untrusted), cwd="/"
            )
        except FileNotFoundError:
            raise UnsupportedError("a session can work in a clone only if git is installed on this machine") from None
        timer = threading.Timer(_PATIENCE, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            with process.stdout as pipe:
                output = pipe.read(MOST + 1)
            if len(output) > MOST:
                process.kill()
            status = process.wait()
        finally:
            timer.cancel()
        if len(output) > MOST:
            raise GitError(f"the output of git {arguments[0]} exceeds {MOST >> 20} MiB", status)
        if status not in accept:
            errors.seek(0)
            said = errors.read()[-_SHOWN:].decode(errors="replace").strip()
            raise GitError(said or f"git {arguments[0]} ended with status {status}", status)
        return output


def _environment(untrusted: bool) -> Mapping[str, str]:
    """Return the environment of git: without variables that lead it to another repository."""
    given = {name: value for name, value in config.environment().items() if not name.startswith("GIT_")}
    given |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}
    if untrusted:
        given |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    return given
