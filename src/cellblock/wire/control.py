"""Control messages between host, fork server, init and worker (docs/wire.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, Literal, TypeAlias

from cellblock.wire.datagrams import Incoming
from cellblock.wire.record import record
from cellblock.wire.sandbox import Confinement, Plan, Restrictions, Step

EXIT_NO_IPYTHON = 65
EXIT_PRELOAD = 66
"""Exit status of a zygote, or a fresh interpreter, whose preparation failed: see `worker.warm`."""

EXIT_UNCONFINED = 71
"""Exit status of a worker that could not confine itself."""

FORK_DESCRIPTORS = 4
"""The descriptors that come with ``fork``: the worker's channel, init's control socket, the write ends of the output pipes."""

Commands: TypeAlias = Literal["asked", "forbidden"]
"""How commands of cells run: after asking the host, or by the host as well, because the worker cannot run them."""

Keep: TypeAlias = Literal["nothing", "out", "err", "both", "together"]
"""Which output of a program goes to files."""

# -- host → fork server, or an interpreter that creates one kernel -------------------------------------------------------


@record
class Hello:
    """The first message. ``places``: the prefix of the paths to remove after the host has ended."""

    op: ClassVar[str] = "hello"
    places: str | None


@record
class Fork:
    """Create a kernel, with the attached descriptors."""

    op: ClassVar[str] = "fork"
    session: int


@record
class Kill:
    """Kill a kernel's init, and all its child processes."""

    op: ClassVar[str] = "kill"
    session: int


@record
class End:
    """End, although the host continues."""

    op: ClassVar[str] = "end"


# -- fork server → host --------------------------------------------------------------------------------------------------


@record
class Ready:
    """The modules are imported. ``interpreter``: directories that a native sandbox must show for the interpreter to run."""

    op: ClassVar[str] = "ready"
    interpreter: tuple[str, ...] | None


@record
class Failed:
    """A kernel could not be forked. ``code``: the system's error number."""

    op: ClassVar[str] = "failed"
    session: int
    error: str
    code: int


# -- host → init ---------------------------------------------------------------------------------------------------------


@record
class Listener:
    """A listener to open in the session before any code runs: its port (0: any), and the variable that gets the port."""

    port: int
    variable: str


@record
class Setup:
    """The specification of an init and its worker.

    Attributes:
        env: The complete environment.
        cwd: The worker's initial directory, which is the workspace.
        stay_in: The directory to return to after each cell; None to keep changes of directory.
        packages: The directory of the session's own packages; relative to srt's directory, if srt runs it.
        commands: How commands of its cells run; None for no approval.
        listeners: The listeners to open, by name.
        mounts: Steps for the file system after the plan's.
        plan: The plan of a native sandbox.
        policy: The policy to make a plan from, if the host does not know this interpreter (`Policy.to_dict`).
        inherit: Variables to take over from the outer sandbox.
        restrictions: The restrictions that the worker applies to itself in a sandbox of another program.
        landlock: The version of Landlock for a Landlock sandbox, by the policy; `mounts` are the session's additional paths.
            0: another sandbox.
        environment: The directory of the packages that the session was made with; empty for none.
    """

    op: ClassVar[str] = "setup"
    env: Mapping[str, str]
    cwd: str
    stay_in: str | None
    packages: str
    commands: Commands | None = None
    listeners: Mapping[str, Listener] = field(default_factory=dict)
    mounts: tuple[Step, ...] = ()
    plan: Plan | None = None
    policy: Mapping[str, Any] | None = None
    inherit: tuple[str, ...] = ()
    restrictions: Restrictions | None = None
    landlock: int = 0
    environment: str = ""


@record
class Interrupt:
    """Send SIGINT to the worker's process group."""

    op: ClassVar[str] = "interrupt"


@record
class KillChildren:
    """Kill every child process except the worker."""

    op: ClassVar[str] = "kill_children"


@record
class Freeze:
    """Stop the worker and all its processes (SIGSTOP). Repeated until all of them are stopped."""

    op: ClassVar[str] = "freeze"


@record
class Thaw:
    """Resume frozen processes."""

    op: ClassVar[str] = "thaw"


@record
class Unblock:
    """The session is idle: remove its placeholders, and prevent writes where they were. The answer is `Unblocked`."""

    op: ClassVar[str] = "unblock"


@record
class Block:
    """Code is about to run: restore the placeholders. The answer is `Blocked`. `Run`, `Exec` and `Resume` include it."""

    op: ClassVar[str] = "block"


@record
class Run:
    """Run a program, confined like the worker.

    Attributes:
        number: The program's number in this kernel.
        argv: The program and its arguments.
        cwd: Its working directory.
        env: Its environment; None: the session's.
        changes: Changes to it; None removes a variable.
        keep: Which output goes to files.
        place: The prefix of the names of these files.
    """

    op: ClassVar[str] = "run"
    number: int
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] | None
    changes: Mapping[str, str | None]
    keep: Keep
    place: str | None


@record
class Exec:
    """Run a background program with its own streams (`cellblock.wire.program_messages`).

    Attached are the connection to its watcher, a file with its specification, and its standard streams.

    Attributes:
        opened: Whether it has a terminal, or is the files helper (`cellblock.launch.init.watcher`).
    """

    op: ClassVar[str] = "exec"
    opened: bool


@record
class Stop:
    """Kill the running programs, and all processes started since, except the worker's own children."""

    op: ClassVar[str] = "stop"


@record
class Listen:
    """Open a listener on the session's own loopback interface."""

    op: ClassVar[str] = "listen"


@record
class Measure:
    """Measure the session's memory; it need not be exact if it is certainly at most ``enough`` bytes."""

    op: ClassVar[str] = "measure"
    enough: int


@record
class Dial:
    """Connect to a TCP port of a native sandbox, at 127.0.0.1. The answer is `Dialled`."""

    op: ClassVar[str] = "dial"
    number: int
    port: int


@record
class ListPorts:
    """List the ports that `Dial` can reach. The answer is `OpenPorts`."""

    op: ClassVar[str] = "list_ports"


@record
class Connect:
    """Pass the connection for copies of kernels (`ToFamily`). Copies end when it is closed."""

    op: ClassVar[str] = "connect"


# -- init → host ---------------------------------------------------------------------------------------------------------


@record
class HttpServer:
    """A listener was opened, and is attached. ``name``: as in `Setup`; None: `Listen` requested it."""

    op: ClassVar[str] = "listening"
    port: int
    name: str | None = None


@record
class Memory:
    """The session's memory, and its excess of kernel objects.

    Attributes:
        bytes: The memory.
        copies: Upper limit of the part of copies; measured if the memory exceeds the limit.
        excess: Which Linux kernel objects the session has too many of, in a sentence; empty if none.
    """

    op: ClassVar[str] = "memory"
    bytes: int
    copies: int
    excess: str = ""


@record
class Ran:
    """A program has ended, with this wait status."""

    op: ClassVar[str] = "ran"
    number: int
    status: int


@record
class Refused:
    """The sandbox, or the processes in it, could not be created; no code has run in it.

    Attributes:
        error: The system's message.
        step: The failed step (`cellblock.walls.sandbox.steps`); empty if the request, not the machine, is at fault.
        code: The system's error number; 0 if none.
    """

    op: ClassVar[str] = "refused"
    error: str
    step: str
    code: int


@record
class Done:
    """A command was carried out."""

    op: ClassVar[str] = "done"


@record
class Frozen:
    """The answer to ``freeze``.

    ``left``: the number of processes that still ran at the last check; 0: the kernel cannot run.
    """

    op: ClassVar[str] = "frozen"
    left: int


@record
class Unblocked:
    """The answer to ``unblock``.

    Attributes:
        done: Whether there are no placeholders now. If not, code of the session runs, or has files open for writing.
        useful: Whether another request can be useful: a session outside of a project has no placeholders.
    """

    op: ClassVar[str] = "unblocked"
    done: bool
    useful: bool


@record
class Blocked:
    """The answer to ``block``. ``error``: why no code of the session may run now; empty if it may."""

    op: ClassVar[str] = "blocked"
    error: str


@record
class Dialled:
    """The answer to ``dial``, with the socket attached, which may still be connecting.

    ``code``: the system's error number; 0: there is a socket.
    """

    op: ClassVar[str] = "dialled"
    number: int
    code: int


@record
class OpenPorts:
    """The answer to ``list_ports``. ``code``: the system's error number; 0: the ports are known."""

    op: ClassVar[str] = "open_ports"
    ports: tuple[int, ...]
    code: int


@record
class Quiet:
    """A kernel that the host has given up cannot run or have any effect; Linux still frees its memory."""

    op: ClassVar[str] = "quiet"


@record
class Exited:
    """The worker has ended, with this wait status."""

    op: ClassVar[str] = "exited"
    status: int


# -- init → worker, and → its parent process -----------------------------------------------------------------------------


@record
class WorkerSetup:
    """The specification of a worker. Other fields are as in `Setup`.

    Attributes:
        confinement: Applied before any code runs, if given.
        offline: The explanation of failed connections, if the sandbox has no network.
    """

    op: ClassVar[str] = "setup_worker"
    env: Mapping[str, str]
    cwd: str
    stay_in: str | None
    packages: str
    commands: Commands | None
    confinement: Confinement | None
    offline: str | None = None
    environment: str = ""


@record
class Held:
    """The creation of names is prevented in the attached, locked directory: release it when init has ended."""

    op: ClassVar[str] = "held"
    names: tuple[str, ...]


# -- host ↔ the sandbox of an MCP server ---------------------------------------------------------------------------------


@record
class ServerSetup:
    """The specification of an MCP server's sandbox.

    Attributes:
        user: User and group outside.
        base: The steps for the common part of all sandboxes.
        plan: The plan of this sandbox.
        cwd: Working directory.
        port: The port of the listener for the proxy; None: there is no network.
        holds: Inherited descriptors of directories, each with the names whose creation is prevented there.
        group: An inherited descriptor of its control group.
    """

    op: ClassVar[str] = "setup_server"
    user: tuple[int, int]
    base: tuple[Step, ...]
    plan: Plan
    cwd: str
    port: int | None
    holds: tuple[tuple[int, tuple[str, ...]], ...] = ()
    group: int | None = None


@record
class Made:
    """The sandbox was created, and the server is about to start. ``hidden``: arguments that name paths outside the sandbox."""

    op: ClassVar[str] = "made"
    hidden: tuple[str, ...]


# -- who may send which --------------------------------------------------------------------------------------------------

ToLauncher: TypeAlias = Hello | Fork | Kill | End
FromLauncher: TypeAlias = Ready | Failed | Refused
Command: TypeAlias = (
    Interrupt
    | KillChildren
    | Freeze
    | Thaw
    | Unblock
    | Block
    | Run
    | Exec
    | Stop
    | Listen
    | Measure
    | Dial
    | ListPorts
    | Connect
)
FromInit: TypeAlias = (
    HttpServer | Memory | Ran | Refused | Done | Frozen | Unblocked | Blocked | Dialled | OpenPorts | Quiet | Exited
)
FromServer: TypeAlias = Made | Refused

TO_LAUNCHER: Incoming[ToLauncher] = Incoming(Hello, Fork, Kill, End)
FROM_LAUNCHER: Incoming[FromLauncher] = Incoming(Ready, Failed, Refused)
TO_NEW_INIT: Incoming[Setup] = Incoming(Setup)
TO_INIT: Incoming[Command] = Incoming(
    Interrupt, KillChildren, Freeze, Thaw, Unblock, Block, Run, Exec, Stop, Listen, Measure, Dial, ListPorts, Connect
)
FROM_INIT: Incoming[FromInit] = Incoming(
    HttpServer, Memory, Ran, Refused, Done, Frozen, Unblocked, Blocked, Dialled, OpenPorts, Quiet, Exited
)
TO_WORKER: Incoming[WorkerSetup] = Incoming(WorkerSetup)
TO_MAKER: Incoming[Held] = Incoming(Held)
TO_SERVER: Incoming[ServerSetup] = Incoming(ServerSetup)
FROM_SERVER: Incoming[FromServer] = Incoming(Made, Refused)
