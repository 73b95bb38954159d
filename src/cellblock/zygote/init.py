"""Process 1 of a session: makes the worker, reaps, passes on the host's signals, and ends everything at the end.

It outlives no one: when the host, the zygote or the worker is gone, everything below it is killed and it exits.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import resource
import select
import signal
import socket
import sys
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

from cellblock.sandbox import linux
from cellblock.sandbox.ground import Ground
from cellblock.sandbox.plan import EGRESS_PORT, HOME
from cellblock.wire.control import MAX_CONTROL, MAX_DESCRIPTORS, decode_control, encode_control
from cellblock.zygote import processes
from cellblock.zygote.specialise import specialise

if TYPE_CHECKING:
    from cellblock.worker.shell import Shell
    from cellblock.worker.streams import Outbox

CHANNEL = 3
"""The worker's end of the channel, the only descriptor it has besides 0 to 2."""

EXIT_BROKEN = 70
_HANDOVER, _HOST = 3, 4
_HIGH = 64  # above every descriptor that is put into a place


def run_init(
    handover: int,
    host: int | None,
    warmed: tuple[Shell, Outbox] | None,
    preload: tuple[str, ...],
    ground: Ground | None,
) -> NoReturn:
    """Become a session's init, and make its worker; never returns.

    Both can be made ahead of time. They belong to nobody then, and wait until a session's connections are handed over.

    Args:
        handover: A socket on which ``fork`` arrives, with the descriptors of the session.
        host: A pidfd of the host, or None where there are none.
        warmed: What `warm` made, or None to let the worker do that.
        preload: Modules for the worker to import, where nothing is warmed.
        ground: What the native sandbox stands on; this is process 1 of new namespaces then. None: no sandbox.
    """
    try:
        if ground is not None:
            ground.settle_in()
        _place({_HANDOVER: handover} if host is None else {_HANDOVER: handover, _HOST: host})
        if os.getsid(0) != os.getpid():
            os.setsid()
        processes.become_subreaper()
        if warmed is not None or ground is not None:
            # A host's thread is the parent otherwise, and the signal comes when that thread ends.
            processes.die_with_parent(signal.SIGTERM)
        inner, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        wake = _wake_on_signals()
        worker = os.fork()
        if worker == 0:
            _run_worker(theirs, warmed, preload)
        theirs.close()
        _Init(socket.socket(fileno=_HANDOVER), inner, None if host is None else _HOST, wake, worker, ground).run()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(EXIT_BROKEN)


def _place(wanted: dict[int, int]) -> None:
    """Put descriptors where they belong, close everything else above standard error, and read nothing.

    Args:
        wanted: From their places, which follow on 3 without a gap, to where they are now.
    """
    # First out of the way of all places, or one would overwrite another that is still to be moved.
    moved = {place: fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, _HIGH) for place, source in wanted.items()}
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0, inheritable=True)
    for place, source in moved.items():
        os.dup2(source, place, inheritable=place < CHANNEL)
    os.closerange(max(*wanted, 2) + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def _wake_on_signals() -> int:
    """Have SIGCHLD and SIGTERM wake a poll; return the descriptor to poll."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def _run_worker(inner: socket.socket, warmed: tuple[Shell, Outbox] | None, preload: tuple[str, ...]) -> NoReturn:
    status, spec = EXIT_BROKEN, None
    try:
        processes.die_with_parent(signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        _place({CHANNEL: inner.detach()})
        if warmed is None:
            # It takes long and may fail: what it says is for the session's standard error, which comes first.
            spec = _take_over()
            from cellblock.zygote.warm import warm

            warmed = warm(preload)
        shell, outbox = warmed
        from cellblock.worker.main import Worker, leave

        # The socket by its number: what the channel is to be lies elsewhere until a session takes this process over.
        worker = Worker(shell, outbox, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, CHANNEL))
        if spec is None:
            if not select.select([CHANNEL], [], [], 0)[0]:  # nobody waits
                worker.limber_up()
            spec = _take_over()
        # First this: in the session's directory, whatever imports something may find the session's own file.
        if (confinement := spec.get("confinement")) is not None:
            linux.confine(confinement)
        specialise(spec)
        faulthandler.enable(2)  # a segfault leaves a Python traceback on stderr
        worker.stay_in = spec.get("stay_in")
        worker.run()
        leave()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else EXIT_BROKEN
    except BaseException:
        sys.stderr = sys.__stderr__
        traceback.print_exc()
    finally:
        try:
            if sys.__stderr__ is not None:
                sys.__stderr__.flush()
        finally:
            os._exit(status)


def _take_over() -> dict[str, Any]:
    """In the worker: wait for the session's channel, stdout and stderr, put them into place, and return what to be."""
    with socket.socket(fileno=CHANNEL) as inner:
        data, descriptors, _, _ = socket.recv_fds(inner, MAX_CONTROL, MAX_DESCRIPTORS)
        if not data:
            os._exit(0)  # init is gone before anybody wanted us
        inner.detach()
    channel, out, err = descriptors
    for source, place in ((out, 1), (err, 2), (channel, CHANNEL)):
        os.dup2(source, place, inheritable=place < CHANNEL)
        os.close(source)
    return decode_control(data)


class _Init:
    """The loop of a session's init: first it waits for a session, then it serves it."""

    def __init__(
        self,
        handover: socket.socket,
        inner: socket.socket,
        host: int | None,
        wake: int,
        worker: int,
        ground: Ground | None,
    ) -> None:
        self._handover = handover
        self._inner = inner
        self._control: socket.socket | None = None
        self._host = host
        self._wake = wake
        self._worker = worker
        self._ground = ground
        self._confinement: dict[str, Any] | None = None
        self._inherited: dict[str, str] = {}
        self._program: int | None = None
        self._poll = select.poll()
        for descriptor in (handover.fileno(), host, wake):
            if descriptor is not None:
                self._poll.register(descriptor, select.POLLIN)

    def run(self) -> NoReturn:
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._wake:
                    if signal.SIGTERM in os.read(self._wake, 4096):
                        self._end()
                    self._reap()
                elif descriptor == self._host:
                    self._end()
                elif self._control is None:
                    self._take_over()
                else:
                    self._obey()

    def _take_over(self) -> None:
        """Take a session's connections, and pass on to the worker what is the worker's."""
        data, descriptors, _, _ = socket.recv_fds(self._handover, MAX_CONTROL, MAX_DESCRIPTORS)
        if not data:
            self._end()
        channel, control, out, err = descriptors
        self._control = socket.socket(fileno=control)
        self._poll.unregister(self._handover)
        self._poll.register(control, select.POLLIN)
        self._handover.close()
        # The host has sent this before; the zygote, whose memory later kernels inherit, never sees it.
        spec = decode_control(self._control.recv(MAX_CONTROL))
        # What the sandbox that this zygote runs in has set, such as where its proxies are.
        self._inherited = {name: os.environ[name] for name in spec.pop("inherit", ()) if name in os.environ}
        spec["env"] = self._inherited | spec["env"]
        if (restrictions := spec.pop("restrictions", None)) is not None:
            spec["confinement"] = self._confinement = restrictions | {"root": linux.identity_of_root()}
            linux.hide()
        if self._ground is not None:
            try:
                spec["confinement"] = self._confinement = self._ground.build(spec)
                if spec["confinement"]["egress"]:
                    with linux.listen(EGRESS_PORT) as listener:
                        socket.send_fds(self._control, [encode_control("listening")], [listener.fileno()])
            except (OSError, ValueError) as error:
                self._tell("refused", error=str(error))
                self._end()
        socket.send_fds(self._inner, [encode_control(**spec)], [channel, out, err])
        self._inner.close()
        _place_output(out, err)
        os.close(channel)

    def _obey(self) -> None:
        assert self._control is not None
        try:
            data = self._control.recv(MAX_CONTROL)
        except ConnectionError:
            data = b""
        if not data:
            self._end()
        message = decode_control(data)
        if message["op"] == "interrupt":
            self._interrupt()
        elif message["op"] == "kill_children":
            processes.kill(pid for pid in processes.descendants(os.getpid()) if pid != self._worker)
        elif message["op"] == "run":
            self._run(message)
            return
        elif message["op"] == "listen":
            with linux.listen(0) as listener:
                port = listener.getsockname()[1]
                socket.send_fds(self._control, [encode_control("listening", port=port)], [listener.fileno()])
            return
        elif message["op"] == "measure":
            self._tell("memory", bytes=processes.memory_of_namespace(HOME))
            return
        # The answer tells the host that the signal is on its way, so that it cannot hit a later cell.
        self._tell("done")

    def _run(self, message: dict[str, Any]) -> None:
        """Run a program that the host wants run, confined like the worker; ``ran`` follows when it has ended."""
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _become(message["argv"], self._inherited | message["env"], message["cwd"], self._confinement)
        self._program = pid

    def _interrupt(self) -> None:
        if self._program is not None:
            processes.kill([-self._program], signal.SIGINT)
        try:
            # The group, as a terminal's ^C does: subprocesses of the cell are meant as well.
            os.killpg(self._worker, signal.SIGINT)
        except ProcessLookupError:
            processes.kill([self._worker], signal.SIGINT)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._program:
                self._program = None
                self._tell("ran", status=status)
            if pid == self._worker:
                self._tell("exited", status=status)
                self._end()

    def _tell(self, op: str, **fields: Any) -> None:
        if self._control is None:
            return
        try:
            self._control.send(encode_control(op, **fields), socket.MSG_NOSIGNAL)
        except OSError:
            self._end()

    def _end(self) -> NoReturn:
        """Kill everything below, wait until it is gone, and exit. The host sees the end of the control socket last."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        while True:
            if self._ground is not None:
                _kill_everything()
            else:
                processes.kill(processes.descendants(os.getpid()))
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    continue
            except ChildProcessError:
                os._exit(0)
            # The time limit is for a fork that raced with the walk, and made no signal since.
            if poll.poll(10):
                os.read(self._wake, 4096)


def _place_output(out: int, err: int) -> None:
    for source, place in ((out, 1), (err, 2)):
        os.dup2(source, place)
        os.close(source)


def _become(argv: list[str], env: dict[str, str], cwd: str, confinement: dict[str, Any] | None) -> NoReturn:
    """In a fork of init: execute a program with the session's standard streams, and nothing else of init's."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        processes.die_with_parent(signal.SIGKILL)
        os.closerange(3, _HIGH)
        os.chdir(cwd)
        if confinement is not None:
            linux.confine(confinement)
        os.execve(argv[0], argv, env)
    except BaseException as error:
        os.write(2, f"{argv[0]} cannot be run: {error}\n".encode())
    finally:
        os._exit(127)


def _kill_everything() -> None:
    """As process 1: kill every other process of the namespace, at once and without looking for them."""
    if os.getpid() != 1:  # in nobody's namespace but the machine's, it would be everything of this user there
        os._exit(EXIT_BROKEN)
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        return  # there are none


def serve_alone(preload: tuple[str, ...], native: bool) -> NoReturn:
    """Be a session of one's own, without a zygote, with the handover socket as standard input.

    The worker is forked before anything but this module is loaded, and imports IPython itself, so that nothing forks that
    cannot stand it (macOS's system libraries, mostly).
    """
    with socket.socket(fileno=os.dup(0)) as handover:
        data, descriptors, _, _ = socket.recv_fds(handover, MAX_CONTROL, MAX_DESCRIPTORS)
        if not data:
            os._exit(0)
        host, group = (*descriptors, None, None)[:2]
        if not native:
            run_init(handover.detach(), host, None, preload, None)
        ground = Ground.prepare()
        init = linux.fork_into_namespaces(group)
        if init == 0:
            run_init(handover.detach(), host, None, preload, ground)
    _guard(init)


def _guard(init: int) -> NoReturn:
    """Stand between the host, which knows this process, and an init in namespaces of its own. They end together."""
    for descriptor in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC), descriptor)
    os.closerange(3, _HIGH)
    signal.signal(signal.SIGTERM, lambda *_: processes.kill([init]))
    os._exit(os.waitstatus_to_exitcode(os.waitpid(init, 0)[1]) & 255)
