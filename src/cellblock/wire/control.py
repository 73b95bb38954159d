"""Control messages between host, fork server, init and worker, and who may send which. docs/wire.md describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, Literal, TypeAlias

from cellblock.wire.datagrams import Incoming
from cellblock.wire.record import record
from cellblock.wire.sandbox import Confinement, Plan, Restrictions, Step

EXIT_NO_IPYTHON = 65
EXIT_PRELOAD = 66
"""How a zygote, or a fresh interpreter, exits that cannot become one: see `worker.warm`."""

EXIT_UNCONFINED = 71
"""How a worker exits that could not confine itself."""

FORK_DESCRIPTORS = 4
"""What comes with ``fork``: the worker's channel, init's control socket, and the write ends of the two output pipes."""

Commands: TypeAlias = Literal["asked", "forbidden"]
"""What becomes of the commands of cells: the host is asked about them, or runs them as well, since the worker cannot."""

Keep: TypeAlias = Literal["nothing", "out", "err", "both", "together"]
"""Which output of a program goes to files."""

# -- host → fork server, or an interpreter that makes one kernel ---------------------------------------------------------


@record
class Hello:
    """The first message. ``places``: what the paths begin with that are to be removed after the host."""

    op: ClassVar[str] = "hello"
    places: str | None


@record
class Fork:
    """Make a kernel of the descriptors that come along."""

    op: ClassVar[str] = "fork"
    session: int


@record
class Kill:
    """Kill a kernel's init, and with it everything below."""

    op: ClassVar[str] = "kill"
    session: int


@record
class End:
    """End; the host goes on."""

    op: ClassVar[str] = "end"


# -- fork server → host --------------------------------------------------------------------------------------------------


@record
class Ready:
    """The modules are imported. ``interpreter``: directories that a native sandbox shows to have it run."""

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
    """A listener to make in the session before there is code: its port (0 is any), and the variable that tells it."""

    port: int
    variable: str


@record
class Setup:
    """What init and its worker are to be.

    Attributes:
        env: The whole environment.
        cwd: The directory that the worker begins in, which is the workspace.
        stay_in: The directory that it comes back to after each cell; None: it stays where the code went.
        packages: Where the session's own packages lie; relative to what srt gives it, if that runs it.
        commands: What becomes of the commands of its cells; None: nobody is asked.
        listeners: What to listen on, by name.
        mounts: Steps for the file system after those of the plan.
        plan: What to build, in a native sandbox.
        policy: What to make a plan of, if the host does not know this interpreter (`Policy.to_dict`).
        inherit: Variables to take over from the sandbox around this one.
        restrictions: What the worker puts on itself in a sandbox that is not ours.
        landlock: The version of Landlock that the sandbox is made of, with the policy; `mounts` are what the session has
            besides. 0: another sandbox.
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


@record
class Interrupt:
    """Send SIGINT to the worker's process group."""

    op: ClassVar[str] = "interrupt"


@record
class KillChildren:
    """Kill every process below, but not the worker."""

    op: ClassVar[str] = "kill_children"


@record
class Freeze:
    """Stop the worker and every process below (SIGSTOP). It is sent again until all of them are stopped."""

    op: ClassVar[str] = "freeze"


@record
class Thaw:
    """Have what was frozen go on."""

    op: ClassVar[str] = "thaw"


@record
class Run:
    """Run a program, confined like the worker.

    Attributes:
        number: Counts the programs of this kernel.
        argv: The program and its arguments.
        cwd: The directory that it runs in.
        env: Its environment; None: the session's.
        changes: What differs in it; None takes a variable away.
        keep: Which output goes to files.
        place: What the names of these files begin with.
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
class Stop:
    """Kill the programs that were run, and whatever was started since they began, except the worker's own children."""

    op: ClassVar[str] = "stop"


@record
class Listen:
    """Make a listener on the session's own loopback interface."""

    op: ClassVar[str] = "listen"


@record
class Measure:
    """Measure the session's memory; what is certainly not over ``enough`` bytes need not be exact."""

    op: ClassVar[str] = "measure"
    enough: int


@record
class Connect:
    """Another connection comes along: for copies of kernels (`ToFamily`). Copies live no longer than it is open."""

    op: ClassVar[str] = "connect"


# -- init → host ---------------------------------------------------------------------------------------------------------


@record
class HttpServer:
    """A listener was made, and comes along. ``name``: one that `Setup` asked for; None: one that `Listen` asked for."""

    op: ClassVar[str] = "listening"
    port: int
    name: str | None = None


@record
class Memory:
    """What the session uses. Without copies, that would be at most ``copies`` bytes less: known if it is over the limit."""

    op: ClassVar[str] = "memory"
    bytes: int
    copies: int


@record
class Ran:
    """A program has ended, with this wait status."""

    op: ClassVar[str] = "ran"
    number: int
    status: int


@record
class Refused:
    """The sandbox, or the processes in it, could not be made; no code has run in it.

    Attributes:
        error: What the system said.
        step: What failed (`cellblock.walls.sandbox.steps`); empty if the machine could, but what was asked for makes no sense.
        code: The system's error number; 0 if there is none.
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
    """The answer to ``freeze``. ``left``: how many processes still ran at the last look; 0: nothing of the kernel can run."""

    op: ClassVar[str] = "frozen"
    left: int


@record
class Exited:
    """The worker has ended, with this wait status."""

    op: ClassVar[str] = "exited"
    status: int


# -- init → worker, and → who made it ------------------------------------------------------------------------------------


@record
class WorkerSetup:
    """What a worker is to be: see `Setup`.

    Attributes:
        confinement: What is applied before any code runs; None: nothing is.
        offline: What explains failed connections, if the sandbox has no network.
    """

    op: ClassVar[str] = "setup_worker"
    env: Mapping[str, str]
    cwd: str
    stay_in: str | None
    packages: str
    commands: Commands | None
    confinement: Confinement | None
    offline: str | None = None


@record
class Held:
    """Names are kept from being made in the directory that comes along, locked: to be released when init has ended."""

    op: ClassVar[str] = "held"
    names: tuple[str, ...]


# -- host ↔ the sandbox of an MCP server ---------------------------------------------------------------------------------


@record
class ServerSetup:
    """What to build for an MCP server.

    Attributes:
        user: User and group outside.
        base: What trees are put together from.
        plan: What to build.
        cwd: The directory that it runs in.
        port: The port of the listener for the proxy; None: there is no network.
        holds: Descriptors of directories, inherited, and the names that are kept from being made in each.
        group: A descriptor of the control group that it is to be in, inherited.
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
    """It was made, and the server is about to start. ``hidden``: arguments that name what the sandbox does not show."""

    op: ClassVar[str] = "made"
    hidden: tuple[str, ...]


# -- who may send which --------------------------------------------------------------------------------------------------

ToLauncher: TypeAlias = Hello | Fork | Kill | End
FromLauncher: TypeAlias = Ready | Failed | Refused
Command: TypeAlias = Interrupt | KillChildren | Freeze | Thaw | Run | Stop | Listen | Measure | Connect
FromInit: TypeAlias = HttpServer | Memory | Ran | Refused | Done | Frozen | Exited
FromServer: TypeAlias = Made | Refused

TO_LAUNCHER: Incoming[ToLauncher] = Incoming(Hello, Fork, Kill, End)
FROM_LAUNCHER: Incoming[FromLauncher] = Incoming(Ready, Failed, Refused)
TO_NEW_INIT: Incoming[Setup] = Incoming(Setup)
TO_INIT: Incoming[Command] = Incoming(Interrupt, KillChildren, Freeze, Thaw, Run, Stop, Listen, Measure, Connect)
FROM_INIT: Incoming[FromInit] = Incoming(HttpServer, Memory, Ran, Refused, Done, Frozen, Exited)
TO_WORKER: Incoming[WorkerSetup] = Incoming(WorkerSetup)
TO_MAKER: Incoming[Held] = Incoming(Held)
TO_SERVER: Incoming[ServerSetup] = Incoming(ServerSetup)
FROM_SERVER: Incoming[FromServer] = Incoming(Made, Refused)
