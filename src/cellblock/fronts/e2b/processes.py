"""Programs of E2B's clients: envd's service ``process.Process``."""

from __future__ import annotations

import asyncio
import base64
import binascii
import posixpath
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field
from starlette.requests import Request as HttpRequest

from cellblock.errors import CellblockError, InvalidInputError, NotFoundError, ProcessError, StateError
from cellblock.fronts.e2b.connect import DeadlineError, Message, check_user, pause_of, stream, timeout_of, unary, unsupported
from cellblock.model.programs import ExecResult, ProcessInfo, ProcessOutput, ProgramOutput
from cellblock.operations.programs import (
    Processes,
    ReadProcess,
    ResizeProcess,
    SignalProcess,
    Spawn,
    StopProcess,
    WriteProcess,
)

if TYPE_CHECKING:
    from cellblock.fronts.e2b.contexts import Contexts
    from cellblock.operations.base import AnswerT, Request
    from cellblock.service.daemon.link import SessionLink

Event = dict[str, Any] | CellblockError
"""An event of a program, or an error in place of its end."""

_SERVICE = "/process.Process"
_WAIT = 20_000
"""Milliseconds for which the daemon is asked to wait for output."""

_SIGNALS = {"SIGNAL_SIGTERM": 15, "SIGNAL_SIGKILL": 9, 15: 15, 9: 9}
_WAITING = 4
"""Pieces of output that wait for a client that reads slowly. Then its program waits."""


class Config(Message):
    """A program, its arguments and its environment."""

    cmd: str
    args: list[str] = Field(default_factory=list)
    envs: dict[str, str] = Field(default_factory=dict)
    cwd: str = ""


class Size(Message):
    """The size of a terminal."""

    cols: int = Field(ge=1, le=65_535)
    rows: int = Field(ge=1, le=65_535)


class Terminal(Message):
    """A terminal."""

    size: Size


class Selector(Message):
    """A reference to a program: one of these fields."""

    pid: int = 0
    tag: str = ""


class StartMessage(Message):
    """A program to start."""

    process: Config
    pty: Terminal | None = None
    tag: str = Field("", max_length=200)
    stdin: bool = False


class SelectMessage(Message):
    """A message about one program."""

    process: Selector


class Input(Message):
    """Input for a program, in base64."""

    stdin: str = ""
    pty: str = ""


class InputMessage(SelectMessage):
    """A message with input for one program."""

    input: Input


class SignalMessage(SelectMessage):
    """A signal for one program."""

    signal: Literal["SIGNAL_SIGTERM", "SIGNAL_SIGKILL", 15, 9]


class UpdateMessage(SelectMessage):
    """A new size for the terminal of one program."""

    pty: Terminal


class Programs:
    """The programs that clients listen to. Output without a listener is dropped, so that the program continues."""

    def __init__(self, link: SessionLink, contexts: Contexts) -> None:
        """Set up without programs.

        Args:
            link: The link to the session.
            contexts: The contexts. Programs belong to Python's default context.
        """
        self._link = link
        self._contexts = contexts
        self._heard: dict[str, Program] = {}

    @property
    def session(self) -> str:
        """The name of the programs' session."""
        return self._contexts.find(None, None).id

    async def start(self, message: StartMessage, timeout: float | None) -> Program:
        """Start a program.

        Args:
            message: The program to start.
            timeout: Limit in seconds; None for no limit.

        Raises:
            CellblockError: The program cannot be started.
        """
        wanted, home = message.process, self._contexts.workspace.home
        cwd = posixpath.join(home, wanted.cwd)
        spawn = partial(
            Spawn,
            command=(wanted.cmd, *wanted.args),
            cwd=cwd,
            env={"HOME": home, "USER": "user", "LOGNAME": "user", "PWD": cwd, **wanted.envs},
            stdin=message.stdin,
            rows=0 if message.pty is None else message.pty.size.rows,
            columns=0 if message.pty is None else message.pty.size.cols,
            keep="all",
            label=message.tag,
        )
        try:
            info = ProcessInfo.from_dict(await self._contexts.ask(spawn))
        except ProcessError as error:
            raise InvalidInputError(str(error)) from None  # the program or directory does not exist; envd reports it like this
        return self._hear(info, timeout)

    async def running(self) -> list[ProcessInfo]:
        """Return all running programs."""
        try:
            found = await self._link.call(Processes(self.session))
        except NotFoundError:
            return []  # the session does not exist yet
        return [info for info in map(ProcessInfo.from_dict, found) if info.running]

    async def find(self, wanted: Selector) -> ProcessInfo:
        """Return a running program.

        Raises:
            NotFoundError: The program does not exist.
        """
        for info in await self.running():
            if (info.label == wanted.tag) if wanted.tag else (info.pid == wanted.pid):
                return info
        raise NotFoundError(
            f"no program with {f'the tag {wanted.tag[:100]!r}' if wanted.tag else f'the pid {wanted.pid}'} runs"
        )

    async def connect(self, wanted: Selector) -> Program:
        """Return a running program for listening.

        Raises:
            NotFoundError: The program does not exist.
        """
        info = await self.find(wanted)
        return self._heard.get(info.id) or self._hear(info, None)

    async def ask(self, wanted: Selector, request: Callable[[str, str], Request[AnswerT]], body: bytes = b"") -> AnswerT:
        """Run an operation on a running program.

        Args:
            wanted: The program.
            request: Returns the request for the session and the program's id.
            body: The body of the request.

        Raises:
            NotFoundError: The program does not exist.
        """
        return await self._link.call(request(self.session, (await self.find(wanted)).id), body)

    def _hear(self, info: ProcessInfo, timeout: float | None) -> Program:
        program = self._heard[info.id] = Program(self._link, self.session, info, timeout)
        program.task.add_done_callback(lambda _: self._heard.pop(info.id, None))
        return program

    async def close(self) -> None:
        """Stop listening to all programs, which continue."""
        tasks = [program.task for program in self._heard.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class Program:
    """A program, and the clients that listen to it.

    Attributes:
        info: Its description.
        task: Forwards its output until it ends.
    """

    def __init__(self, link: SessionLink, session: str, info: ProcessInfo, timeout: float | None) -> None:
        self.info = info
        self._link = link
        self._session = session
        self._listeners: set[asyncio.Queue[Event]] = set()
        self._last: Event | None = None
        self.task = asyncio.create_task(self._pass_on(timeout))

    def events(self, every: float) -> AsyncGenerator[dict[str, Any], None]:
        """Yield events from the time of this call.

        Args:
            every: Seconds without output after which a keep-alive event is sent.
        """
        queue: asyncio.Queue[Event] = asyncio.Queue(_WAITING)
        if self._last is not None:
            queue.put_nowait(self._last)
        self._listeners.add(queue)
        return self._events(queue, every)

    async def _events(self, queue: asyncio.Queue[Event], every: float) -> AsyncGenerator[dict[str, Any], None]:
        try:
            yield {"event": {"start": {"pid": self.info.pid}}}
            while True:
                try:
                    async with asyncio.timeout(every):
                        event = await queue.get()
                except TimeoutError:
                    event = {"keepalive": {}}
                if isinstance(event, CellblockError):
                    raise event
                yield {"event": event}
                if "end" in event:
                    return
        finally:
            self._listeners.discard(queue)
            while not queue.empty():  # so that the program continues
                queue.get_nowait()

    async def _pass_on(self, timeout: float | None) -> None:
        try:
            async with asyncio.timeout(timeout):
                self._last = {"end": await self._listen()}
        except TimeoutError:
            self._last = DeadlineError(f"the program was stopped after {timeout:g} seconds")
            with suppress(CellblockError):
                await self._link.call(StopProcess(self._session, self.info.id))
        except CellblockError as error:
            self._last = error
        await self._tell(self._last)

    async def _listen(self) -> dict[str, Any]:
        """Forward the output; return the program's outcome."""
        position = 0
        while True:
            asked = ReadProcess(self._session, self.info.id, position, _WAIT)
            found = ProcessOutput.from_dict(await self._link.call(asked))
            for piece in found.pieces:
                await self._tell({"data": {self._name(piece): base64.b64encode(piece.data).decode("ascii")}})
            position = found.position
            if found.result is not None and found.finished:
                return ended(found.result)

    def _name(self, piece: ProgramOutput) -> str:
        return "pty" if self.info.terminal else piece.stream

    async def _tell(self, event: Event) -> None:
        for queue in [*self._listeners]:
            await queue.put(event)


def ended(result: ExecResult) -> dict[str, Any]:
    """Return the end of a program for E2B's clients. They expect -1 if it did not exit, as in Go."""
    if result.status == "exited":
        status = f"exit status {result.exit_code}"
        return {"exitCode": result.exit_code, "exited": True, "status": status} | (
            {"error": status} if result.exit_code else {}
        )
    return {"exitCode": -1, "exited": False, "status": result.reason, "error": result.reason}


async def start(request: HttpRequest, message: StartMessage) -> AsyncGenerator[dict[str, Any], None]:
    """Start a program, and send its output. If the client leaves, the program continues within the client's time limit."""
    check_user(request)
    program = await _programs(request).start(message, timeout_of(request))
    return program.events(pause_of(request))


async def connect(request: HttpRequest, message: SelectMessage) -> AsyncGenerator[dict[str, Any], None]:
    """Send a program's output from now on."""
    return (await _programs(request).connect(message.process)).events(pause_of(request))


async def list_programs(request: HttpRequest, _: Message) -> dict[str, Any]:
    """List the running programs."""
    return {"processes": [_described(info) for info in await _programs(request).running()]}


def _described(info: ProcessInfo) -> dict[str, Any]:
    config = {"cmd": info.command[0], "args": list(info.command[1:])}
    return {"config": config, "pid": info.pid} | ({"tag": info.label} if info.label else {})


async def send_input(request: HttpRequest, message: InputMessage) -> dict[str, Any]:
    """Write to a program's standard input, or to its terminal."""
    try:
        data = base64.b64decode(message.input.stdin or message.input.pty, validate=True)
    except binascii.Error as wrong:
        raise InvalidInputError(f"input: it is not base64: {wrong}") from None
    if not await _programs(request).ask(message.process, WriteProcess, data):
        raise StateError("the program has closed its standard input")
    return {}


async def close_stdin(request: HttpRequest, message: SelectMessage) -> dict[str, Any]:
    """Close the standard input of a program."""
    await _programs(request).ask(message.process, partial(WriteProcess, end=True))
    return {}


async def send_signal(request: HttpRequest, message: SignalMessage) -> dict[str, Any]:
    """Send a signal to a program and its child processes."""
    await _programs(request).ask(message.process, partial(SignalProcess, number=_SIGNALS[message.signal], scope="tree"))
    return {}


async def update(request: HttpRequest, message: UpdateMessage) -> dict[str, Any]:
    """Change the size of a program's terminal."""
    size = message.pty.size
    await _programs(request).ask(message.process, partial(ResizeProcess, rows=size.rows, columns=size.cols))
    return {}


def _programs(request: HttpRequest) -> Programs:
    programs: Programs = request.app.state.programs
    return programs


ROUTES = [
    stream(f"{_SERVICE}/Start", StartMessage, start),
    stream(f"{_SERVICE}/Connect", SelectMessage, connect),
    unary(f"{_SERVICE}/List", Message, list_programs),
    unary(f"{_SERVICE}/SendInput", InputMessage, send_input),
    unary(f"{_SERVICE}/CloseStdin", SelectMessage, close_stdin),
    unary(f"{_SERVICE}/SendSignal", SignalMessage, send_signal),
    unary(f"{_SERVICE}/Update", UpdateMessage, update),
    unsupported(f"{_SERVICE}/StreamInput", "StreamInput is not supported: send input with SendInput"),
]
