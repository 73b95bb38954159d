"""Follows an execution in a terminal: streams output, asks questions, and handles Ctrl-C."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from types import FrameType, TracebackType
from typing import Any, Self, TextIO

from cellblock import errors
from cellblock.common.terminal import printable
from cellblock.errors import CellblockError, DaemonError, OutcomeUnknownError
from cellblock.fronts.cli import problems
from cellblock.fronts.cli.daemon_access import connect
from cellblock.fronts.cli.output import painted
from cellblock.fronts.cli.progress import Progress
from cellblock.fronts.cli.prompts import Questions, say_what_waits
from cellblock.fronts.where import open_if_running
from cellblock.model.checkpoints import undo_note
from cellblock.operations.approvals import Pending
from cellblock.operations.executions import Cancel, Follow
from cellblock.service.daemon.daemon_connection import SessionConnection

_LEAVE = 3
"""Presses of Ctrl-C that leave a cell that does not stop."""

_OTHER_CODE = "waiting for other code in {0} ('cellblock interrupt {0}' stops it)"

Data = Mapping[str, Any]


class NotBegunError(KeyboardInterrupt):
    """Ctrl-C cancelled an execution before it began."""


class Reader:
    """A consumer of the events of an execution, which shows only requests that wait for a decision.

    Attributes:
        execution: The execution's id, once it is known.
    """

    execution = ""

    @property
    def asks(self) -> bool:
        """Whether the reader waits for standard input."""
        return False

    def take(self, kind: str, data: Data, execution: str) -> None:
        """Handle one event (`ExecutionEvent`)."""
        self.execution = execution
        if kind == "approval":
            say_what_waits(data)

    def read(self) -> None:
        """Read from standard input, which is ready, and answer the open question."""

    def end(self, result: Data) -> None:
        """Handle the result."""

    def close(self) -> None:
        """Restore the terminal."""


def follow(connection: SessionConnection, submit: Callable[[], str], reader: Reader, session: str) -> dict[str, Any]:
    """Submit an execution, and follow it to its end. Ctrl-C stops it; its result is still read.

    Args:
        connection: A connection for exclusive use.
        submit: Submits the execution, and returns its id.
        reader: Handles the events.
        session: The session's name, for messages.

    Returns:
        The result (`CodeExecutionResult.to_dict`).

    Raises:
        CellblockError: The execution could not be run.
        NotBegunError: The execution was stopped before it began.
        KeyboardInterrupt: The execution does not stop.
    """
    with _Interrupts() as interrupts, Progress("making the session") as progress, closing(reader):
        execution = submit()
        progress.text = _OTHER_CODE.format(session)
        progress.find_text = lambda: _waiting(session)
        interrupts.stop_by(execution)
        result: dict[str, Any] | None = None
        events = _Events(connection, execution)
        for event in events:
            kind, data = event["kind"], event["data"]
            if kind == "begun":
                progress.find_text, progress.text = None, "running"
                reader.take(kind, data, execution)
                continue
            progress.hide()
            if kind == "result":
                result = data
            elif kind == "failed":
                raise _failure(data, execution, interrupted=interrupts.count > 0)
            else:
                reader.take(kind, data, execution)
                while reader.asks and events.waits_for(0):
                    reader.read()
    if result is None:
        raise OutcomeUnknownError("the outcome of the execution is unknown: the daemon no longer stores its result", execution)
    reader.end(result)
    return result


class _Events:
    """The events of an execution. If the daemon is killed, they continue from the next daemon."""

    def __init__(self, connection: SessionConnection, execution: str) -> None:
        self._connection = connection
        self._execution = execution

    def __iter__(self) -> Iterator[dict[str, Any]]:
        known, lost = 0, None
        with ExitStack() as connections:
            while True:
                try:
                    for event in self._connection.follow(Follow(self._execution, known, answers=True)):
                        known = event["seq"]
                        yield event
                    return
                except DaemonError as error:
                    if self._connection.usable:
                        raise
                    lost = error
                except errors.NotFoundError:
                    if lost is None:
                        raise
                    message = f"{lost}, and the new daemon has no record of the execution"
                    raise OutcomeUnknownError(message, self._execution) from None
                self._connection = connections.enter_context(closing(connect()))

    def waits_for(self, descriptor: int) -> bool:
        """Wait until a descriptor is readable or an event arrives; return whether it is the descriptor."""
        return not self._connection.hears_before(descriptor)


def _waiting(session: str) -> str:
    """Return what a queued execution waits for."""
    try:
        connection = open_if_running()
        if connection is not None:
            with closing(connection):
                if connection.call(Pending(session)):
                    return f"waiting for code in {session} that waits for a decision ('cellblock approvals pending' lists it)"
    except CellblockError:
        pass  # the follower receives the error
    return _OTHER_CODE.format(session)


def _failure(data: Data, execution: str, *, interrupted: bool) -> BaseException:
    if interrupted and data["ran"] != "unknown":
        return NotBegunError()
    return errors.failure(data, execution)


class _Interrupts:
    """A context in which Ctrl-C stops the execution. Pressed three times, it raises `KeyboardInterrupt`.

    Python runs signal handlers in the main thread, between system calls. A signal that arrives just before a call does not
    interrupt the call. A thread therefore waits on the descriptor to which Python writes signals at once
    (`signal.set_wakeup_fd`).

    Attributes:
        count: How often Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        self.count = 0
        self._asked = False
        self._execution = ""
        self._before: Any = None
        self._main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Self:
        if self._main:
            reader, self._writer = socket.socketpair()
            self._writer.setblocking(False)
            threading.Thread(target=self._watch, args=(reader,), daemon=True).start()
            self._woken_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
            self._before = signal.signal(signal.SIGINT, self._pressed)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._before)
            signal.set_wakeup_fd(self._woken_before)
            self._writer.close()

    def stop_by(self, execution: str) -> None:
        """Set how to stop the execution. It is stopped at once if Ctrl-C was already pressed."""
        self._execution = execution
        if self._asked:
            threading.Thread(target=_cancel, args=(execution,), daemon=True).start()

    def _pressed(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count >= _LEAVE:
            raise KeyboardInterrupt

    def _watch(self, reader: socket.socket) -> None:
        with reader:
            while numbers := reader.recv(100):
                if signal.SIGINT in numbers:
                    self._asked = True
                    if self._execution:
                        _cancel(self._execution)


def _cancel(execution: str) -> None:
    try:
        connection = open_if_running()
        if connection is not None:
            with closing(connection):
                connection.call(Cancel(execution))
    except CellblockError:
        pass  # the follower receives the error


class Terminal(Reader):
    """A reader that shows output as it arrives, and asks the user."""

    raw = False
    """Whether output is written unchanged, because standard output is not a terminal."""

    def __init__(self, value_prefix: str = "", errors: TextIO | None = None) -> None:
        """Start at the beginning of a line.

        Args:
            value_prefix: Prefix of the value of the last expression, such as ``Out[{}]: ``; ``{}`` is the number of the
                cell.
            errors: Where to write errors and notes; standard error by default.
        """
        self._value_prefix = value_prefix
        self._errors = errors or sys.stderr
        self._number: int | None = None
        self._line_open = False
        self._shown_already = ""
        self._questions = Questions()

    @property
    def asks(self) -> bool:
        return self._questions.open

    def take(self, kind: str, data: Data, execution: str) -> None:
        match kind:
            case "begun":
                self._number = data["execution_count"]
            case "stream":
                self._stream(data["name"], data["text"])
            case "display":
                self._show(data)
            case "input":
                self._line_open = sys.stdin.isatty()  # until the user types a line feed
                self._questions.ask_for_line(execution, password=data["password"])
                if self._questions.has_line:
                    self.read()
            case "approval":
                self._finish_line()
                self._questions.ask_about(data)
            case "decided":
                self._questions.withdraw(data)
            case "gap":
                self._finish_line()
                self._say(f"… {data['dropped']} earlier events were dropped")

    def read(self) -> None:
        self._shown_already = self._questions.read()
        if self._shown_already:
            self._line_open = False

    def end(self, result: Data) -> None:
        self._finish_line()
        if error := result["error"]:
            text = "\n".join(error["traceback"]) or f"{error['ename']}: {error['evalue']}"
            print(painted(printable(text), "red", self._errors), file=self._errors, flush=True)
        for path in result["images"]:
            self._say(f"picture: {path}")
        for path in result["spilled"]:
            self._say(f"the whole output: {path}")
        if note := note_on(result):
            self._say(note)

    def close(self) -> None:
        self._questions.close()

    def _say(self, message: str) -> None:
        sys.stdout.flush()
        print(printable(message), file=self._errors, flush=True)

    def _stream(self, name: str, text: str) -> None:
        if self._shown_already:  # the terminal has shown the typed text
            known, self._shown_already = self._shown_already, ""
            text = text.removeprefix(known)
        if name == "stderr" and text.startswith("[cellblock] "):  # a note of the host's, after the code's output
            self._finish_line()
        stream = self._errors if name == "stderr" else sys.stdout
        stream.write(text if self.raw and not stream.isatty() else _shown(text, stream.isatty()))
        stream.flush()
        if text:
            self._line_open = not text.endswith("\n")

    def _show(self, item: Data) -> None:
        if item["kind"] == "stream":
            self._stream(item["name"], item["text"] or "")
        elif item["kind"] != "error" and item["text"]:
            self._finish_line()
            prefix = self._value_prefix.format(self._number) if item["kind"] == "execute_result" else ""
            text = printable(item["text"])
            print(f"{painted(prefix, 'red', sys.stdout) if prefix else ''}{_lines_below(prefix, text)}{text}", flush=True)

    def _finish_line(self) -> None:
        if self._line_open:
            self._line_open = False
            if not self.raw or sys.stdout.isatty():
                print(flush=True)


def _lines_below(prefix: str, text: str) -> str:
    """Return a line feed if a value has several lines and follows a prefix, as in IPython."""
    return "\n" if prefix and "\n" in text else ""


def _shown(text: str, terminal: bool) -> str:
    """Make output safe to print. Carriage returns stay, because progress bars need them."""
    if not terminal or "\r" not in text:
        return printable(text)
    return "\r\x1b[K".join(map(printable, text.replace("\r\n", "\n").split("\r")))


def note_on(result: Data) -> str:
    """Return a note on how the code was stopped, in addition to the error; empty if there is nothing to add."""
    if result["status"] == "timeout":
        return "stopped at its timeout (--timeout SECONDS allows more)"
    if result["recovery"] == "restarted" and result["status"] in ("success", "error"):
        return "its earlier kernel had ended; a fresh kernel without variables runs now"
    return undo_note(result)


def exit_status(result: Data) -> int:
    known = {"success": problems.OK, "timeout": problems.TIMED_OUT, "interrupted": problems.INTERRUPTED}
    return known.get(result["status"], problems.FAILED)
