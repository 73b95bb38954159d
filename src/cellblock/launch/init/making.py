"""Creates the surroundings of a session's worker before it starts: the sandbox, and the listeners."""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Mapping

from cellblock.errors import NO_NETWORK, NO_NETWORK_BY_LANDLOCK
from cellblock.launch.init import processes
from cellblock.launch.init.blocking import Blocking
from cellblock.launch.init.seats import Seat
from cellblock.launch.init.sockets import listening
from cellblock.launch.init.supervisor import Supervisor
from cellblock.walls.linux.syscall import hide, identity_of_root
from cellblock.walls.sandbox import landlock_rules, mounts, namespaces
from cellblock.walls.sandbox.ground import Ground, enclose, reserve
from cellblock.walls.sandbox.placeholders import Hold
from cellblock.walls.sandbox.plan import HOME
from cellblock.walls.sandbox.policy import Policy
from cellblock.wire.control import TO_MAKER, Dial, Dialled, Held, HttpServer, Listener, OpenPorts, Setup, WorkerSetup
from cellblock.wire.datagrams import MAX_CONTROL, MAX_DESCRIPTORS, encode_control
from cellblock.wire.sandbox import Confinement, Step


class Surroundings:
    """The surroundings of a session's worker: its sandbox, its listeners and its holds on placeholders.

    Attributes:
        supervisor: Answers system calls of the session, in a Landlock sandbox.
        home: The home directory of the session.
        holds: The holds on placeholders, by their mounts.
        blocking: Blocks names with these placeholders.
    """

    def __init__(self, handover: socket.socket, poll: select.poll, ground: Ground | None, prepared: tuple[Step, ...]) -> None:
        """Store the arguments without creating anything.

        Args:
            handover: Socket on which the parent process gets messages about holds.
            poll: Polls for system calls, for the supervisor.
            ground: The basis of the native sandbox, if any.
            prepared: The steps of the sandbox that were done in advance.
        """
        self._handover = handover
        self._poll = poll
        self._ground = ground
        self._prepared = prepared
        self.supervisor: Supervisor | None = None
        self.home = HOME
        self.holds: dict[str, Hold] = {}
        self.blocking = Blocking({}, ())
        self._served: set[int] = set()
        """The ports that the host serves."""

    def make(self, setup: Setup, seat: Seat) -> WorkerSetup:
        """Create the surroundings of a session's worker. Return the worker's setup."""
        # Variables set by the sandbox around this zygote, such as the addresses of its proxies.
        packages = os.path.join(os.environ.get("CELLBLOCK_PACKAGES", ""), setup.packages)
        inherited = {name: os.environ[name] for name in setup.inherit if name in os.environ}
        seat.programs.inherited = inherited
        env = {**inherited, **setup.env}
        confinement = None
        if setup.landlock:
            confinement = self._confine_by_landlock(setup)
            assert self.supervisor is not None
            seat.programs.supervise = self.supervisor.expect
        if setup.restrictions is not None:
            mounts.keep_kernel_settings()
            confinement = Confinement(identity_of_root(), setup.restrictions)
            hide()
        if self._ground is not None:
            plan = self._ground.plan(setup)
            self.home = plan.home
            if env.get("HOME") == HOME:
                env["HOME"] = plan.home
            reserve(plan, self._keep)
            confinement = enclose(plan, self._prepared)
            self.blocking = Blocking(self.holds, plan.steps)
            if setup.commands == "forbidden" and not processes.has_own_proc():
                raise ValueError(
                    "forbid_programs needs a /proc of the session's own, which the kernel does not allow here: weaker_proc "
                    "(enableWeakerNestedSandbox) is not enough for it"
                )
        env.update(self.listen_for(seat, setup.listeners))
        offline = None
        if setup.landlock:
            offline = NO_NETWORK_BY_LANDLOCK
        elif self._ground is not None and "egress" not in setup.listeners:
            offline = NO_NETWORK
        return WorkerSetup(env, setup.cwd, setup.stay_in, packages, setup.commands, confinement, offline, setup.environment)

    def _confine_by_landlock(self, setup: Setup) -> Confinement:
        """Compute what the session's processes apply to themselves, and prepare for the calls that they leave to init."""
        policy = Policy.from_dict(setup.policy or {})
        confinement = landlock_rules.confinement(policy, setup.cwd, identity_of_root(), setup.landlock, setup.mounts)
        self.supervisor = Supervisor(self._poll)
        self.supervisor.writable = landlock_rules.writable(confinement)
        self.supervisor.file_size = confinement.restrictions.limits["FSIZE"]
        hide()
        return confinement

    def listen_for(self, seat: Seat, listeners: Mapping[str, Listener]) -> dict[str, str]:
        """Open the listeners of a kernel. Return the variables with their ports."""
        return {listener.variable: str(self.listen(seat, listener.port, name)) for name, listener in listeners.items()}

    def listen(self, seat: Seat, port: int, name: str | None) -> int:
        """Open a listener in the session, for the host to serve. Return its port."""
        with namespaces.listen(port) as listener:
            port = listener.getsockname()[1]
            self._served.add(port)
            if self.supervisor is not None:
                self.supervisor.ports.add(port)
            socket.send_fds(seat.control, [encode_control(HttpServer(port, name))], [listener.fileno()])
        return port

    def dial(self, seat: Seat, message: Dial) -> None:
        """Begin a connection to a server of the session, and pass the socket to the host, which waits for the connection.

        The ports that the host serves are refused, because their servers trust who connects. So is every port without a
        network of the session: it would be another program's.
        """
        try:
            if self._ground is None or message.port in self._served:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            with namespaces.dial(message.port) as made:
                socket.send_fds(seat.control, [encode_control(Dialled(message.number, 0))], [made.fileno()])
        except OSError as error:  # also if code of the session keeps too many descriptors in messages
            seat.tell(Dialled(message.number, error.errno or errno.EIO))

    def open_ports(self) -> OpenPorts:
        """Return the ports of the session's servers."""
        try:
            return OpenPorts(tuple(port for port in listening() if port not in self._served), 0)
        except OSError as error:
            return OpenPorts((), error.errno or errno.EIO)

    def _keep(self, top: str, hold: Hold) -> None:
        """Share a hold on placeholders with the parent process, which releases it if this process is killed."""
        self.holds[top] = hold
        socket.send_fds(self._handover, [encode_control(Held(hold.names))], [hold.descriptor])


def release_holds(handover: socket.socket) -> None:
    """Release the holds of an init that has ended, whether or not it could do so itself.

    The socket is not read while init lives: the descriptors in it, and so their locks, stay there.

    Args:
        handover: Our end of the socket on which init got its session; it is closed here.
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
