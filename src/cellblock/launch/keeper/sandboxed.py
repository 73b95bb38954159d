"""Runs one program, such as an MCP server, in its own native sandbox, which ends with its keeper.

The keeper starts process 1 of new namespaces. That builds the tree, opens the listener for the proxy, tells the host, and
forks the program, confined like a session's worker. When the program ends, it ends too, with all processes in the sandbox.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
from typing import NoReturn

from cellblock.launch.init import processes
from cellblock.launch.init.refusing import refusal
from cellblock.walls.sandbox import mounts, namespaces
from cellblock.walls.sandbox.confine import confine, drop_capabilities
from cellblock.walls.sandbox.ground import enclose
from cellblock.walls.sandbox.placeholders import Hold
from cellblock.walls.sandbox.steps import step
from cellblock.wire.control import TO_SERVER, Made, Refused, ServerSetup
from cellblock.wire.datagrams import MAX_CONTROL, encode_control
from cellblock.wire.sandbox import Confinement

_EXIT_NOT_STARTED = 127
_MAX_HIDDEN = 10
_HOST, _KEEPER = 3, 4
"""The descriptors of process 1: its socket to the host, and a pidfd of the keeper."""


def run_sandboxed(control: int, command: list[str]) -> tuple[int, list[Hold]]:
    """Start a program in a sandbox, as a keeper.

    Args:
        control: A socket to the host, with the plan in it. The answer is ``made`` or ``refused``.
        command: The program and its arguments.

    Returns:
        Process 1 of the sandbox, which exits like the program, and holds on placeholders to release when it has ended.
    """
    with socket.socket(fileno=control) as host:
        setup = TO_SERVER.decode(host.recv(MAX_CONTROL))
        holds = [Hold(descriptor, names) for descriptor, names in setup.holds]
        needed, named = _program(command), _arguments(command)
        keeper = os.pidfd_open(os.getpid())
        try:
            init = namespaces.fork_into_namespaces(setup.group)
        except OSError as error:
            _refuse(host, refusal(error, "user namespace"))
            init = _fork_in_vain()
        if init == 0:
            _be_init(host, keeper, setup, command, needed, named)
        os.close(keeper)
    return init, holds


def _fork_in_vain() -> int:
    """Fork a process that exits at once: without its sandbox, the program is not started."""
    pid = os.fork()
    if pid == 0:
        os._exit(_EXIT_NOT_STARTED)
    return pid


def _be_init(
    host: socket.socket, keeper: int, setup: ServerSetup, command: list[str], needed: list[str], named: list[str]
) -> NoReturn:
    try:
        processes.forget_signals()
        processes.die_with_parent(signal.SIGKILL)
        processes.place_descriptors({_HOST: host.detach(), _KEEPER: keeper})
        host = socket.socket(fileno=_HOST)
        if select.select([_KEEPER], [], [], 0)[0]:
            os._exit(_EXIT_NOT_STARTED)  # it ended before its end could have ended us
        try:
            confinement = _make(host, setup, needed, named)
        except (OSError, ValueError) as error:
            _refuse(host, refusal(error, "files"))
            os._exit(_EXIT_NOT_STARTED)
        host.close()
        drop_capabilities()
        program = os.fork()
        if program == 0:
            _become(confinement, setup.cwd, command)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        while (ended := os.waitpid(-1, 0))[0] != program:
            continue
        code = os.waitstatus_to_exitcode(ended[1])
        os._exit(code if code >= 0 else 128 - code)
    except BaseException as error:
        os.write(2, f"process 1 of the sandbox: {error!r}\n".encode(errors="backslashreplace"))
    finally:
        os._exit(_EXIT_NOT_STARTED)


def _make(host: socket.socket, setup: ServerSetup, needed: list[str], named: list[str]) -> Confinement:
    """Create the sandbox, and tell the host. Return what the program must apply to itself."""
    with step("identity"):
        namespaces.enter_namespaces(*setup.user)
        mounts.cut_ties()
    with step("shared mounts"):
        mounts.make_base(setup.base)
    confinement = enclose(setup.plan, ())
    for path in needed:
        if not os.path.lexists(path):  # the target of a link is the next one
            raise ValueError(
                f"it does not show {path}, which the program needs: add the directory that it is installed in to "
                "filesystem.allowRead"
            )
    listeners = [] if setup.port is None else [namespaces.listen(setup.port)]
    hidden = tuple(path for path in named if not os.path.lexists(path))[:_MAX_HIDDEN]
    socket.send_fds(host, [encode_control(Made(hidden))], [listener.fileno() for listener in listeners])
    for listener in listeners:
        listener.close()
    return confinement


def _become(confinement: Confinement, cwd: str, command: list[str]) -> NoReturn:
    """Become the program, in a fork of process 1, with its standard streams and no other descriptor."""
    try:
        os.setsid()
        source = processes.move_high(0)  # `confine` puts another in its place
        processes.close_descriptors(3)
        confine(confinement)
        os.dup2(source, 0)
        os.chdir(cwd)
        processes.execute(command)
    except BaseException as error:
        os.write(2, f"{command[0]} cannot be run: {error}\n".encode(errors="backslashreplace"))
    finally:
        os._exit(_EXIT_NOT_STARTED)


def _refuse(host: socket.socket, told: Refused) -> None:
    host.send(encode_control(told), socket.MSG_NOSIGNAL)


def _program(command: list[str]) -> list[str]:
    """Return the files from which a program is started: its path, the targets of links, its interpreter."""
    found = shutil.which(command[0])
    if found is None:
        return []  # `execute` will report that it does not exist
    files = [os.path.abspath(found), os.path.realpath(found)]
    try:
        with open(found, "rb") as file:
            first = file.readline(256)
    except OSError:
        return files  # it can be executed but not read
    words = first[2:].decode("utf-8", "replace").split() if first.startswith(b"#!") else []
    if words and os.path.basename(words[0]) == "env":
        files.append(words[0])
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    if words and (interpreter := shutil.which(words[0])) is not None:
        files += [interpreter, os.path.realpath(interpreter)]
    return files


def _arguments(command: list[str]) -> list[str]:
    """Return the arguments, and values of options, that are existing paths."""
    values = [word.partition("=")[2] if word.startswith("-") else word for word in command[1:]]
    return [value for value in values if value.startswith("/") and os.path.lexists(value)]
