"""Explains cell errors with facts that only the session knows: its directory, limits, and workspace modules."""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from cellblock.errors import CellblockError, LaunchError, did_you_mean
from cellblock.host.kernels.cell import readable
from cellblock.model import CodeExecutionResult, ErrorInfo, OutputItem
from cellblock.walls.sandbox.paths import is_inside

if TYPE_CHECKING:
    from cellblock.host.files import Files
    from cellblock.walls.sandbox.policy import Policy
    from cellblock.walls.sandbox.tiers import Tier

_MISSING = re.compile(r"No module named '([A-Za-z_][\w.]{0,200})\.(\w{1,100})'", re.ASCII)
_NOT_IN = re.compile(r"cannot import name '(\w{1,100})' from '([A-Za-z_][\w.]{0,200})'", re.ASCII)
_TOO_MANY = re.compile(r"\[Errno 11\]|can't start new thread$")
_STARTS = re.compile(r"fork|spawn|Popen|start_new_thread|start\(\)")

_NOT_THERE = re.compile(r"\[Errno 2\] No such file or directory: '(/[^']{1,4096})'")
_OWN = ("/tmp", "/dev", "/proc", "/sys", "/usr", "/etc", "/bin", "/lib", "/lib64", "/sbin", "/run", "/home/user")
"""Directories that a sandbox has for itself, or shows as they are."""

_MOST_NAMES = 1000
"""Names that are compared: a session can make any number of them."""

_RESET = "reset the session, which loses its variables"


class Explanations:
    """Explains the errors of one session's cells."""

    def __init__(self, directory: str, tier: Tier, policy: Policy) -> None:
        """Store the arguments.

        Args:
            directory: The session's working directory.
            tier: Its isolation.
            policy: Its policy.
        """
        self._directory = directory
        self._tier = tier
        self._policy = policy
        self._held: tuple[int, int] | None = None
        """The directory that its kernels have, as device and inode: a sandbox does not follow its name."""

    def kernel_begins(self, *, afresh: bool = True) -> None:
        """Record the directory of a new kernel.

        Args:
            afresh: Whether the kernel looks the directory up by name. Otherwise it may have an earlier kernel's directory.

        Raises:
            LaunchError: The directory was removed, and the kernel needs it.
        """
        now = self._look()
        if now is None and afresh:
            raise LaunchError(
                f"the session's working directory {self._directory} no longer exists: create it again, or make a new session"
            )
        if afresh or self._held is None:
            self._held = now

    def _look(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._directory)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    async def explained(self, result: CodeExecutionResult, files: Files) -> CodeExecutionResult:
        """Return the result of a failed cell, with an explanation of its error if there is one.

        Args:
            result: The result.
            files: The files of the working directory.
        """
        error = result.error
        if error is None or result.status != "error":
            return result
        how = self._of_directory() or self._of_processes(error) or self._of_path(error) or await self._of_module(error, files)
        return _told(result, error, how) if how else result

    def _of_directory(self) -> str:
        now = self._look()
        if now is None:
            then = f", then {_RESET}" if self._tier.sandboxed else ""
            return (
                f"the session's working directory {self._directory} was deleted while the session ran: create it again{then}"
            )
        if self._tier.sandboxed and self._held not in (None, now):
            gone = f"the session's working directory {self._directory} was deleted and created again"
            return f"{gone}, and its code still uses the old one: {_RESET}"
        return ""

    def _of_processes(self, error: ErrorInfo) -> str:
        if error.ename not in ("BlockingIOError", "RuntimeError") or not self._tier.ours or not _TOO_MANY.search(error.evalue):
            return ""
        if not _STARTS.search("\n".join(error.traceback)):
            return ""
        most = self._policy.resources.processes
        return (
            f"the session has reached its limit of {most:,} processes and threads: end some, or allow more in its policy, "
            "Resources(processes=…)"
        )

    def _of_path(self, error: ErrorInfo) -> str:
        if error.ename != "FileNotFoundError" or not self._tier.sandboxed or self._policy.filesystem.everything:
            return ""
        if (match := _NOT_THERE.match(error.evalue)) is None:
            return ""
        path = os.path.normpath(match[1])  # nothing is looked up: code must not learn what exists outside
        if self._tier.ours and is_inside(path, "/tmp") and not is_inside(path, self._directory):
            return (
                "/tmp is private to the session and empty at first: to let it read a file of this machine's /tmp, make a "
                'session with read=["PATH"] (on the command line: --read PATH)'
            )
        if any(is_inside(path, top) for top in (self._directory, *_OWN)):
            return ""
        return (
            "a session sees only its workspace and the system: to let it read another path, make a session with "
            'read=["PATH"] (on the command line: --read PATH)'
        )

    async def _of_module(self, error: ErrorInfo, files: Files) -> str:
        if error.ename == "ModuleNotFoundError" and (match := _MISSING.fullmatch(error.evalue)):
            package, name = match.groups()
        elif error.ename == "ImportError" and (match := _NOT_IN.match(error.evalue)):
            name, package = match.groups()
        else:
            return ""
        try:
            there = await files.list(package.replace(".", "/"))
        except CellblockError:  # missing or unreadable
            return ""
        stems = (one.path.rpartition("/")[2].removesuffix(".py") for one in there if one.kind != "symlink")
        known = [stem for stem in stems if stem.isidentifier() and not stem.startswith("_")]
        near = await asyncio.to_thread(did_you_mean, name, known[:_MOST_NAMES])
        return near.removeprefix("; ").replace("mean '", f"mean '{package}.")


def _told(result: CodeExecutionResult, error: ErrorInfo, how: str) -> CodeExecutionResult:
    """Return a result whose error also gives advice, wherever the result shows it."""
    said = f"{error.evalue} ({how})" if error.evalue else how
    parts = list(error.traceback)
    if parts and parts[-1].rstrip().endswith(error.evalue):
        parts[-1] = f"{parts[-1].rstrip()} ({how})"
    elif parts:
        parts.append(f"{error.ename}: {said}")
    before = "\n".join(error.traceback) or f"{error.ename}: {error.evalue}"
    after = OutputItem("error", text="\n".join(parts) or f"{error.ename}: {said}")
    outputs = [after if one.kind == "error" and one.text == before else one for one in result.outputs]
    return replace(result, error=ErrorInfo(error.ename, said, parts), outputs=outputs, text=readable(outputs))
