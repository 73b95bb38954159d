"""Process 1 of a session: makes the worker, reaps, passes on the host's signals, and finally ends everything.

When the host, the zygote or the worker is gone, it kills everything below it and exits.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from cellblock.errors import NO_NETWORK, NO_NETWORK_BY_LANDLOCK
from cellblock.init import processes
from cellblock.init.programs import Programs
from cellblock.init.refusing import refusal, refuse_session
from cellblock.init.supervisor import Supervisor
from cellblock.init.worker import EXIT_BROKEN, run_worker
from cellblock.init.worker import rehearse as rehearse_worker
from cellblock.leftovers import remove_after
from cellblock.sandbox import landlock_rules, mounts, namespaces
from cellblock.sandbox.ground import Ground, enclose, reserve
from cellblock.sandbox.placeholders import Hold
from cellblock.sandbox.plan import HOME
from cellblock.sandbox.policy import Policy
from cellblock.sandbox.steps import step
from cellblock.sandbox.syscall import hide, identity_of_root
from cellblock.wire.codec import decoder, encoder
from cellblock.wire.control import (
    FROM_INIT,
    MAX_CONTROL,
    MAX_DESCRIPTORS,
    TO_INIT,
    TO_MAKER,
    TO_NEW_INIT,
    Done,
    Exited,
    FromInit,
    Held,
    HttpServer,
    Interrupt,
    KillChildren,
    Listen,
    Measure,
    Memory,
    Ran,
    Run,
    Setup,
    Stop,
    WorkerSetup,
    encode_control,
)
from cellblock.wire.sandbox import Confinement, Plan, Restrictions, Step

if TYPE_CHECKING:
    from cellblock.worker.outbox import Outbox
    from cellblock.worker.shell import Shell


_HANDOVER, _HOST, _PARENT = 3, 4, 5


def run_init(
    handover: int,
    host: int | None,
    warmed: tuple[Shell, Outbox] | None,
    preload: tuple[str, ...],
    ground: Ground | None,
    places: str | None = None,
    parent: int | None = None,
) -> NoReturn:
    """Become a session's init, and make its worker; never returns.

    Both can be made ahead of time. They belong to nobody then, and wait until a session's connections are handed over.

    Args:
        handover: A socket on which ``fork`` arrives, with the descriptors of the session.
        host: A pidfd of the host, or None if there are none.
        warmed: What `warm` made, or None to let the worker do that.
        preload: Modules for the worker to import, if nothing is warmed.
        ground: What the native sandbox stands on; this is process 1 of new namespaces then. None: no sandbox.
        places: What the paths of all that the host keeps for its sessions begin with, if nobody else removes it after it.
        parent: A pidfd of the process that makes this one, unless that is the host.
    """
    try:
        wanted = {_HANDOVER: handover, _HOST: host, _PARENT: parent}
        try:
            prepared = ground.enter_namespaces() if ground is not None else ()
            with step("worker"):
                processes.keep_only({place: descriptor for place, descriptor in wanted.items() if descriptor is not None})
                handover = _HANDOVER
                if os.getsid(0) != os.getpid():
                    os.setsid()
                processes.become_subreaper()
                processes.resume_after_parent()
                inner, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                wake = _wake_on_signals()
                worker = os.fork()
        except OSError as error:
            refuse_session(handover, refusal(error, "worker"))
        if worker == 0:
            run_worker(theirs, warmed, preload, ground is not None)
        theirs.close()
        if not select.select([_HANDOVER], [], [], 0)[0]:  # nobody waits
            rehearse(prepared)  # copies the pages that this touches before somebody does
        ending = [place for place in (_HOST, _PARENT) if wanted[place] is not None]
        _Init(socket.socket(fileno=_HANDOVER), inner, ending, wake, worker, ground, prepared, places).run()
    except BaseException:  # nothing may return from here into the code that forked us
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(EXIT_BROKEN)


def rehearse(beginning: tuple[Step, ...]) -> None:
    """As a zygote: work out how to read and write what inits and workers are told, so that none of them has to.

    Args:
        beginning: What most plans begin with.
    """
    restrictions = Restrictions({}, 0, "")
    plan = Plan(everything=False, home="", steps=beginning, reserve={}, restrictions=restrictions)
    TO_NEW_INIT.decode(encode_control(Setup({}, "", None, "", plan=plan)))
    rehearse_worker()
    TO_MAKER.decode(encode_control(Held(())))
    for kind in (*TO_INIT.kinds.values(), *FROM_INIT.kinds.values()):
        decoder(kind)
        encoder(kind)


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


class _Init:
    """The loop of a session's init: first it waits for a session, then it serves it."""

    def __init__(
        self,
        handover: socket.socket,
        inner: socket.socket,
        ending: list[int],
        wake: int,
        worker: int,
        ground: Ground | None,
        prepared: tuple[Step, ...],
        places: str | None,
    ) -> None:
        self._handover = handover
        self._inner = inner
        self._control: socket.socket | None = None
        self._host = _HOST if _HOST in ending else None
        self._ending = ending
        """Pidfds of the processes with which this one ends."""
        self._wake = wake
        self._worker = worker
        self._ground = ground
        self._programs = Programs()
        self._home = HOME
        self._holds: dict[str, Hold] = {}
        self._prepared = prepared
        self._places = places
        self._poll = select.poll()
        for descriptor in (handover.fileno(), *ending, wake):
            self._poll.register(descriptor, select.POLLIN)
        self._supervisor: Supervisor | None = None
        """Answers system calls of the session, in a sandbox made of Landlock."""

    def run(self) -> NoReturn:
        while True:
            for descriptor, event in self._poll.poll():
                if self._supervisor is not None and descriptor in self._supervisor:
                    self._supervisor.serve(descriptor, event)
                elif descriptor == self._wake:
                    if signal.SIGTERM in os.read(self._wake, 4096):
                        self._end()
                    self._reap()
                elif descriptor in self._ending:
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
        # The host has sent this before; the zygote, whose memory later kernels inherit, never sees it.
        setup = TO_NEW_INIT.decode(self._control.recv(MAX_CONTROL))
        try:
            ready = self._make(setup)
        except (OSError, ValueError) as error:
            self._tell(refusal(error, "files"))
            self._end()
        self._programs.env, self._programs.confinement = dict(ready.env), ready.confinement
        if setup.commands == "forbidden" and ready.confinement is not None:
            ready = replace(ready, confinement=replace(ready.confinement, programs=False))
        self._handover.close()
        report = None if self._supervisor is None else self._supervisor.expect()
        rest = [] if report is None else [report.detach()]
        socket.send_fds(self._inner, [encode_control(ready)], [channel, out, err, *rest])
        for descriptor in rest:
            os.close(descriptor)
        self._inner.close()
        _place_output(out, err)
        os.close(channel)

    def _make(self, setup: Setup) -> WorkerSetup:
        """Make what a session needs around its worker; return what the worker is to be."""
        # What the sandbox that this zygote runs in has set, such as where its proxies are.
        packages = os.path.join(os.environ.get("CELLBLOCK_PACKAGES", ""), setup.packages)
        self._programs.inherited = {name: os.environ[name] for name in setup.inherit if name in os.environ}
        env = {**self._programs.inherited, **setup.env}
        confinement = None
        if setup.landlock:
            confinement = self._confine_by_landlock(setup)
        if setup.restrictions is not None:
            mounts.keep_kernel_settings()
            confinement = Confinement(identity_of_root(), setup.restrictions)
            hide()
        if self._ground is not None:
            plan = self._ground.plan(setup)
            self._home = plan.home
            if env.get("HOME") == HOME:
                env["HOME"] = plan.home
            reserve(plan, self._keep)
            confinement = enclose(plan, self._prepared)
            if setup.commands == "forbidden" and not processes.has_own_proc():
                raise ValueError(
                    "forbid_programs needs a /proc of the session's own, which the kernel does not allow here: weaker_proc "
                    "(enableWeakerNestedSandbox) is not enough for it"
                )
        for name, listener in setup.listeners.items():
            env[listener.variable] = str(self._listen(listener.port, name))
        offline = None
        if setup.landlock:
            offline = NO_NETWORK_BY_LANDLOCK
        elif self._ground is not None and "egress" not in setup.listeners:
            offline = NO_NETWORK
        return WorkerSetup(env, setup.cwd, setup.stay_in, packages, setup.commands, confinement, offline)

    def _confine_by_landlock(self, setup: Setup) -> Confinement:
        """Work out what the session's processes apply to themselves, and be ready for what they leave to this one."""
        policy = Policy.from_dict(setup.policy or {})
        confinement = landlock_rules.confinement(policy, setup.cwd, identity_of_root(), setup.landlock, setup.mounts)
        self._supervisor = Supervisor(self._poll)
        self._supervisor.writable = landlock_rules.writable(confinement)
        self._supervisor.file_size = confinement.restrictions.limits["FSIZE"]
        self._programs.supervise = self._supervisor.expect
        hide()
        return confinement

    def _listen(self, port: int, name: str | None) -> int:
        """Make a listener in the session, for the host to serve; return its port."""
        assert self._control is not None
        with namespaces.listen(port) as listener:
            port = listener.getsockname()[1]
            if self._supervisor is not None:
                self._supervisor.ports.add(port)
            socket.send_fds(self._control, [encode_control(HttpServer(port, name))], [listener.fileno()])
        return port

    def _keep(self, top: str, hold: Hold) -> None:
        """Share a hold on placeholders with the process that made this one, which releases it if this one is killed."""
        self._holds[top] = hold
        socket.send_fds(self._handover, [encode_control(Held(hold.names))], [hold.descriptor])

    def _obey(self) -> None:
        assert self._control is not None
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, MAX_CONTROL, MAX_DESCRIPTORS)
        except ConnectionError:
            data, descriptors = b"", []
        if not data:
            self._end()
        match TO_INIT.decode(data):
            case Run() as message:
                self._programs.run(message, descriptors)
            case Listen():
                self._listen(0, None)
            case Measure() as message:
                self._tell(Memory(self._measure(message.enough)))
            # The answer tells the host that the signal is on its way, so that it cannot hit a later cell.
            case Interrupt():
                self._interrupt()
                self._tell(Done())
            case KillChildren():
                processes.kill(pid for pid in processes.descendants(os.getpid()) if pid != self._worker)
                self._tell(Done())
            case Stop():
                self._programs.stop(self._worker)
                self._tell(Done())
        for descriptor in descriptors:
            os.close(descriptor)

    def _measure(self, enough: int) -> int:
        if self._ground is None:
            return processes.memory_of(processes.descendants(os.getpid()), enough)
        return processes.memory_of_namespace(self._home, enough)

    def _interrupt(self) -> None:
        self._programs.interrupt()
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
            if (number := self._programs.ended(pid, self._worker)) is not None:
                self._tell(Ran(number, status))
            if pid == self._worker:
                self._tell(Exited(status))
                self._end()

    def _tell(self, message: FromInit) -> None:
        if self._control is None:
            return
        try:
            self._control.send(encode_control(message), socket.MSG_NOSIGNAL)
        except OSError:
            self._end()

    def _end(self) -> NoReturn:
        """Kill everything below, wait until it is gone, and exit. The host sees the end of the control socket last."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        while True:
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    continue
            except ChildProcessError:  # whatever is below us has an ancestor among our children
                for top, hold in self._holds.items():
                    mounts.detach(top)
                    hold.release()
                remove_after(self._host, self._places, None if self._control is None else self._control.fileno())
                os._exit(0)
            if self._ground is not None:
                _kill_everything()
            else:
                processes.kill(processes.descendants(os.getpid()))
            # The time limit is for a fork that raced with the walk, and made no signal since.
            if poll.poll(10):
                os.read(self._wake, 4096)


def _place_output(out: int, err: int) -> None:
    for source, place in ((out, 1), (err, 2)):
        os.dup2(source, place)
        os.close(source)


def _kill_everything() -> None:
    """As process 1: kill every other process of the namespace, at once and without looking for them."""
    if os.getpid() != 1:  # in nobody's namespace but the machine's, it would be everything of this user there
        os._exit(EXIT_BROKEN)
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        return  # there are none


def release_holds(handover: socket.socket) -> None:
    """Release what an init held that has ended, whether or not it could do so itself.

    Nobody reads this while init lives: its descriptors, and so its locks, are kept by lying in the socket.

    Args:
        handover: Our end of the socket on which init was handed its session; it is closed.
    """
    with handover:
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(handover, MAX_CONTROL, MAX_DESCRIPTORS, socket.MSG_DONTWAIT)
            except OSError:
                return  # it ended before it had taken anything over
            if not data:
                return
            hold = Hold(descriptors[0], TO_MAKER.decode(data).names)
            hold.release()
            hold.close()
