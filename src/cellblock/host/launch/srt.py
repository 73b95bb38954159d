"""Starts a launcher's first process under srt: one srt for each, with its own settings and directory."""

from __future__ import annotations

import asyncio
import codecs
import functools
import json
import os
import secrets
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cellblock.errors import InterpreterError, KernelDiedError, LaunchError, SandboxError
from cellblock.host.descriptors import pending, process_ended, read_some
from cellblock.host.launch.control import Control
from cellblock.host.launch.launcher import Boot
from cellblock.host.launch.spawner import Spawner
from cellblock.host.launch.start import Started, Starter
from cellblock.launch.leftovers import remove_place
from cellblock.model import StreamName
from cellblock.walls.sandbox import srt
from cellblock.walls.sandbox.policy import Policy
from cellblock.walls.sandbox.probe import Facts
from cellblock.wire.control import Setup

if TYPE_CHECKING:
    from cellblock.host.launch.kernel_spec import RunningKernel

_PATIENCE = 5  # seconds
_LAST_READS = 4  # in units of a pipe's capacity

# Prints an interpreter's own directories and its packages' directories.
_ASK = """\
import json, os, sys
print(json.dumps([sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.path.realpath(sys.executable)),
                  *(path for path in sys.path if path and os.path.isdir(path))]))
"""


class UnderSrt(Starter):
    """A starter of launcher processes under srt."""

    command = "srt"

    def __init__(self, policy: Policy, facts: Facts, workspace: str) -> None:
        self._policy = policy
        self._facts = facts
        self._workspace = workspace
        self._directories: dict[int, str] = {}
        """The directory of each srt, by its process id."""

    def start(self, arguments: Sequence[str], control: socket.socket, stderr: int) -> Started:
        command = srt.where("srt")
        if command is None:
            raise SandboxError("the srt command was removed")
        _complete_repository(self._workspace)
        # The program to start is launch/zygote/boot.py of the package.
        place = srt.SrtDirectories(
            workspace=self._workspace,
            private=_new_name(),
            readable=(*_directories(arguments[0]), str(Path(arguments[1]).parents[2]), *srt.own_directories()),
            secret=srt.closed_to_others(),
        )
        # An unnamed file: it cannot be left over or replaced.
        with tempfile.TemporaryFile() as file:
            file.write(json.dumps(srt.settings(self._policy, self._facts, place)).encode())
            file.flush()
            inner = srt.command_line(self._policy, place, arguments)
            try:
                process = subprocess.Popen(
                    srt.command(place, command, f"/dev/fd/{file.fileno()}", inner),
                    stdin=control.fileno(),
                    stdout=stderr,
                    stderr=stderr,
                    env=srt.environment(self._facts, place),
                    cwd=self._workspace,
                    start_new_session=True,
                    pass_fds=[file.fileno()],
                )
            except OSError as error:
                raise LaunchError(f"srt cannot be started in {self._workspace}: {error.strerror}") from error
        self._directories[process.pid] = place.private
        return process

    def terminate(self, process: Started) -> None:
        _signal(process, signal.SIGTERM)

    async def end(self, process: Started) -> None:
        """Wait for the exit of srt, which then removes its protective files from the workspace."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if await process_ended(process, timeout=_PATIENCE):
                break
            _signal(process, number)
        await process_ended(process, timeout=_PATIENCE)
        process.poll()
        await asyncio.to_thread(remove_place, self._directories.pop(process.pid))

    def packages(self, process: Started) -> str | None:
        return f"{self._directories[process.pid]}/packages"


@asynccontextmanager
async def sandbox_apart(kernel: RunningKernel, policy: Policy, facts: Facts) -> AsyncIterator[Control]:
    """Create another srt sandbox for a session's program, whose output is shown as the kernel's.

    Args:
        kernel: The session's kernel.
        policy: The policy of that sandbox.
        facts: Facts about this machine.

    Raises:
        SandboxError: The sandbox could not be created. srt's messages in the output tell why.
        LaunchError: srt cannot be started.
    """
    workspace = kernel.wanted.setup.cwd
    launcher = Spawner(Boot(kernel.wanted.interpreter, (), kernel.wanted.tier.basis, UnderSrt(policy, facts, workspace), None))
    setup = srt.complete(Setup(kernel.wanted.setup.env, "/", None, packages="none"), policy, facts)
    try:
        ends = launcher.launch(0, setup)
        control = Control(ends.control)
        control.read()
        control.gone.add_done_callback(lambda _: control.give_up("it ended"))
        try:
            with _shown(ends.stdout, "stdout", kernel), _shown(ends.stderr, "stderr", kernel):
                yield control
        except KernelDiedError as error:
            raise SandboxError("srt could not make the sandbox, or ended it: its messages are in the output") from error
        finally:
            await control.end(_PATIENCE)
            control.close()
            ends.close()
    finally:
        await launcher.close()


@contextmanager
def _shown(descriptor: int, name: StreamName, kernel: RunningKernel) -> Iterator[None]:
    """Show a pipe's data as output of a kernel, including the rest at the end."""
    loop = asyncio.get_running_loop()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read() -> None:
        data = read_some(descriptor)
        if data is None:
            return
        if not data:
            loop.remove_reader(descriptor)
        if text := decoder.decode(data, final=not data):
            kernel.show(name, text.encode())

    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        for _ in range(_LAST_READS):
            if pending(descriptor):
                read()


def _complete_repository(workspace: str) -> None:
    """Create a repository's missing ``hooks``: srt can protect all of ``.git``, or create missing parts, not both."""
    try:
        repository = os.open(os.path.join(workspace, ".git"), os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return  # it is missing, or it is a file that names another
    try:
        os.mkdir("hooks", dir_fd=repository)
    except OSError:
        return  # it exists, or cannot be created
    finally:
        os.close(repository)


def _new_name() -> str:
    """Return a new path, short enough for srt's sockets in it, whose paths have at most 104 bytes."""
    directory = os.path.realpath(tempfile.gettempdir())
    return os.path.join(directory if len(directory) <= 48 else "/tmp", f"srt-{secrets.token_hex(4)}")


def _signal(process: Started, number: int) -> None:
    """Send a signal to srt and its processes outside the sandbox."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return  # it has ended


@functools.cache
def _directories(interpreter: str) -> tuple[str, ...]:
    """Return the directories of an interpreter and its packages."""
    try:
        answer = subprocess.run([interpreter, "-c", _ASK], env={}, cwd="/", capture_output=True, timeout=30, check=True)
        found = {os.path.realpath(path) for path in json.loads(answer.stdout)}
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise InterpreterError(f"{interpreter} did not report where its packages are: {error}") from error
    # A virtual environment's directory is named both by links and by its path.
    return tuple(sorted(found | {os.path.dirname(interpreter)}))
