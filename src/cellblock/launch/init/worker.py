"""A session's worker from its fork to its first cell: it waits for its setup, confines itself, and serves."""

from __future__ import annotations

import errno
import faulthandler
import functools
import os
import select
import signal
import socket
import sys
import traceback
from typing import TYPE_CHECKING, NoReturn

from cellblock.launch.init import processes
from cellblock.launch.init.forking import fork_copy
from cellblock.launch.init.specialise import installation, specialise
from cellblock.walls.sandbox import landlock_rules
from cellblock.walls.sandbox.confine import confine, drop_capabilities, stand_apart
from cellblock.walls.sandbox.steps import step
from cellblock.wire.control import EXIT_UNCONFINED, TO_WORKER, WorkerSetup
from cellblock.wire.datagrams import MAX_CONTROL, MAX_DESCRIPTORS, encode_control
from cellblock.wire.sandbox import Confinement, Restrictions
from cellblock.worker.channel import CHANNEL, NURSERY

if TYPE_CHECKING:
    from cellblock.worker.outbox import Outbox
    from cellblock.worker.shell import Shell

EXIT_BROKEN = 70


def run_worker(
    inner: socket.socket, warmed: tuple[Shell, Outbox] | None, preload: tuple[str, ...], native: bool, environment: str
) -> NoReturn:
    """Become the worker of a session, which runs its cells; never returns.

    Args:
        inner: The socket on which init sends the setup.
        warmed: The result of `warm`, or None to do that here.
        preload: Modules to import, if `warmed` is None.
        native: Whether this process is in the namespaces of a native sandbox.
        environment: The directory of a trusted environment that `preload` is imported from, if any.
    """
    status, setup, supervisor = EXIT_BROKEN, None, None
    try:
        _leave_init(inner, native)
        if warmed is None:
            # It takes long and may fail: its messages are for the session's standard error, which comes first.
            setup, supervisor = _take_over()
            from cellblock.worker.warm import warm

            warmed = warm(preload, environment)
        shell, outbox = warmed
        from cellblock.worker.main import Worker, leave

        # The socket by its number: until a session takes over this process, the descriptor is not the channel yet.
        worker = Worker(shell, outbox, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, CHANNEL))
        if setup is None:
            if not select.select([CHANNEL], [], [], 0)[0]:  # nothing waits
                worker.touch_pages()
                TO_WORKER.decode(_example)  # likewise
            setup, supervisor = _take_over()
        # First this: in the session's directory, any import may find the session's own file.
        if setup.confinement is not None:
            status = EXIT_UNCONFINED
            confine(setup.confinement, supervisor)
            status = EXIT_BROKEN
        specialise(setup)
        faulthandler.enable(2)  # a segfault leaves a Python traceback on stderr
        worker.stay_in = setup.stay_in
        worker.installation = installation(setup.packages)
        worker.commands = setup.commands
        worker.offline = setup.offline
        worker.fork_copy = functools.partial(fork_copy, CHANNEL, NURSERY)
        worker.run()
        worker.context.run(leave)  # exit handlers of the code see what its cells have set
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else EXIT_BROKEN
    except BaseException:  # of any kind: report it before the process ends
        sys.stderr = sys.__stderr__
        traceback.print_exc()
    finally:
        try:
            if sys.__stderr__ is not None:
                sys.__stderr__.flush()
        finally:
            os._exit(status)


def _leave_init(inner: socket.socket, native: bool) -> None:
    """Become an ordinary child process, in a fork of init: with its own session, signals and descriptors."""
    processes.die_with_parent(signal.SIGKILL)
    if native:
        _stand_apart(inner)
    processes.reset_child_signals()
    processes.offer_to_oom_killer(processes.OOM_WORKER)
    os.setsid()
    handed = inner.detach()
    processes.keep_only({CHANNEL: handed, NURSERY: handed})
    if native:
        drop_capabilities()  # `confine` does it anyway; dropping most early saves time when a caller waits


def _stand_apart(inner: socket.socket) -> None:
    """Enter a separate user namespace (`stand_apart`), and tell init. The process limit is set later, in this namespace.

    This comes before a session waits for it, and before init builds the session's file system. During that, this process's
    root directory is not its mount namespace's, and such a process may not create a user namespace.
    """
    code = 0
    try:
        stand_apart()
    except OSError as error:
        code = error.errno or errno.EPERM
    inner.send(b"%d" % code)
    if code:
        os._exit(0)


def wait_until_apart(inner: socket.socket) -> None:
    """Wait, as init, until its worker has its own user namespace.

    Raises:
        StepError: It could not.
    """
    with step("user namespace"):
        code = int(inner.recv(16) or errno.ECHILD)
        if code:
            raise OSError(code, os.strerror(code))


def example() -> WorkerSetup:
    """Return an example of a setup with all usual fields."""
    confinement = landlock_rules.example() or Confinement((0, 0), Restrictions({}, 0, ""))
    return WorkerSetup({}, "", None, "", None, confinement)


_example = b"{}"
"""An example of a message with a worker's setup."""


def rehearse() -> None:
    """Decode a worker's setup, as a zygote, and keep it for workers."""
    global _example
    _example = encode_control(example())
    TO_WORKER.decode(_example)


def _take_over() -> tuple[WorkerSetup, socket.socket | None]:
    """Wait, in the worker, for the session's channel, stdout and stderr, and put them into place.

    Returns:
        The setup, and the socket for the listener of its filter, if any.
    """
    with socket.socket(fileno=CHANNEL) as inner:
        data, descriptors, _, _ = socket.recv_fds(inner, MAX_CONTROL, MAX_DESCRIPTORS)
        if not data:
            os._exit(0)  # init ended before a session arrived
        inner.detach()
    channel, out, err, *rest = descriptors
    for source, place in ((out, 1), (err, 2), (channel, CHANNEL)):
        os.dup2(source, place, inheritable=place < CHANNEL)
        os.close(source)
    return TO_WORKER.decode(data), socket.socket(fileno=rest[0]) if rest else None
