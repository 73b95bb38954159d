"""Follows an execution in a terminal: its output as it comes, its questions, and Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

from cellblock import errors
from cellblock.cli import problems
from cellblock.cli.client import connect, connect_if_running
from cellblock.cli.output import painted
from cellblock.cli.problems import say
from cellblock.cli.progress import Progress
from cellblock.daemon.connection import Connection
from cellblock.daemon.messages import Answer, Cancel, Decide, Follow
from cellblock.errors import CellblockError, DaemonError, OutcomeUnknownError
from cellblock.terminal import printable

_LEAVE = 3
"""How often somebody presses Ctrl-C to leave a cell that does not stop."""

Data = Mapping[str, Any]


class Reader(Protocol):
    """Takes what happens in an execution."""

    def take(self, kind: str, data: Data, execution: str) -> None:
        """Take one event (`ExecutionEvent`)."""

    def end(self, result: Data) -> None:
        """Take the result."""


def follow(connection: Connection, submit: Callable[[], str], reader: Reader) -> dict[str, Any]:
    """Submit an execution, and follow it to its end; Ctrl-C stops it, and this goes on to its result.

    Args:
        connection: A connection that nobody else uses meanwhile.
        submit: Submits it, and returns its id.
        reader: Takes what happens.

    Returns:
        The result (`CodeExecutionResult.to_dict`).

    Raises:
        CellblockError: It could not be run.
        KeyboardInterrupt: It was stopped before it began, or does not stop.
    """
    with _Interrupts() as interrupts, Progress("waiting for its turn") as progress:
        execution = submit()
        interrupts.stop_by(execution)
        result: dict[str, Any] | None = None
        for event in _events(connection, execution):
            kind, data = event["kind"], event["data"]
            if kind == "begun":
                progress.text = "running"
                continue
            progress.hide()
            if kind == "result":
                result = data
            elif kind == "failed":
                raise _failure(data, execution, interrupted=interrupts.count > 0)
            else:
                with interrupts.suspended(kind in ("input", "approval")):
                    reader.take(kind, data, execution)
    if result is None:
        raise OutcomeUnknownError("the daemon has forgotten how the execution ended", execution)
    reader.end(result)
    return result


def _events(connection: Connection, execution: str) -> Any:
    """Yield the events of an execution; if the daemon is killed meanwhile, read on from the next one."""
    known = 0
    try:
        for event in connection.follow(Follow(execution)):
            known = event["seq"]
            yield event
        return
    except DaemonError as error:
        if connection.usable:
            raise
        lost = error
    with closing(connect()) as again:
        try:
            yield from again.follow(Follow(execution, known))
        except errors.NotFoundError:
            raise OutcomeUnknownError(f"{lost}, and the next one does not know the execution", execution) from None


def _failure(data: Data, execution: str, *, interrupted: bool) -> BaseException:
    if data["ran"] == "unknown":
        return OutcomeUnknownError(data["message"], execution)
    if interrupted:
        return KeyboardInterrupt()
    kind = getattr(errors, data["error"], None)
    return (
        kind(data["message"]) if isinstance(kind, type) and issubclass(kind, CellblockError) else DaemonError(data["message"])
    )


class _Interrupts:
    """While this is entered, Ctrl-C stops the execution. Pressed three times, it is an ordinary `KeyboardInterrupt`.

    Attributes:
        count: How often it was pressed.
    """

    def __init__(self) -> None:
        self.count = 0
        self._execution = ""
        self._suspended = False
        self._before: Any = None
        self._main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Self:
        if self._main:
            self._before = signal.signal(signal.SIGINT, self._pressed)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._before)

    def stop_by(self, execution: str) -> None:
        """Say what is to be stopped. It is stopped at once if somebody has pressed Ctrl-C already."""
        self._execution = execution
        if self.count:
            self._stop()

    @contextmanager
    def suspended(self, yes: bool) -> Iterator[None]:
        """Have Ctrl-C interrupt this program's own reading of a line, and stop the execution after that."""
        self._suspended = yes
        try:
            yield
        except KeyboardInterrupt:
            if self.count >= _LEAVE:
                raise
            self._stop()
        finally:
            self._suspended = False

    def _pressed(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self._suspended or self.count >= _LEAVE:
            raise KeyboardInterrupt
        if self._execution:
            self._stop()

    def _stop(self) -> None:
        # In a thread: the main thread may be in the middle of reading an event.
        threading.Thread(target=_cancel, args=(self._execution,), daemon=True).start()


def _cancel(execution: str) -> None:
    try:
        connection = connect_if_running()
        if connection is not None:
            with closing(connection):
                connection.call(Cancel(execution))
    except CellblockError:
        pass  # whoever follows it hears of it


class Silent:
    """Shows nothing but what waits for a decision."""

    def take(self, kind: str, data: Data, execution: str) -> None:
        """See `Reader`."""
        if kind == "approval":
            _say_what_waits(data)

    def end(self, result: Data) -> None:
        """See `Reader`."""


def _say_what_waits(data: Data) -> None:
    say(f"cellblock: waits for a decision: {printable(data['text'], lines=False)}")
    say(f"  allow it: cellblock approvals allow {data['id']}    deny it: cellblock approvals deny {data['id']}")


class Terminal:
    """Shows output as it comes, and asks who sits there."""

    def __init__(self, value_prefix: str = "") -> None:
        """Begin at the start of a line.

        Args:
            value_prefix: What stands before the value of the last expression, such as ``Out[3]: ``.
        """
        self._value_prefix = value_prefix
        self._echo = ""
        self._line_open = False
        self._control: Connection | None = None

    def take(self, kind: str, data: Data, execution: str) -> None:
        """See `Reader`."""
        if kind == "stream":
            self._stream(data["name"], data["text"])
        elif kind == "display":
            self._show(data)
        elif kind == "input":
            line = self._read_line(password=data.get("password", False))
            self.answer(Answer(execution, end=line is None), (line or "").encode("utf-8", "replace"))
        elif kind == "approval":
            self._finish_line()
            self._decide(data)
        elif kind == "gap":
            self._finish_line()
            say(f"… {data['dropped']} earlier events are no longer kept")

    def end(self, result: Data) -> None:
        """See `Reader`."""
        self._finish_line()
        if error := result["error"]:
            text = "\n".join(error["traceback"]) or f"{error['ename']}: {error['evalue']}"
            print(painted(printable(text), "red", sys.stderr), file=sys.stderr, flush=True)
        for path in result["images"]:
            say(f"picture: {path}")
        for path in result["spilled"]:
            say(f"the whole output: {path}")
        if note := note_on(result):
            say(note)

    def answer(self, request: Answer | Decide, body: bytes = b"") -> Any:
        """Tell the daemon what somebody has answered, on a connection beside the one that is followed."""
        if self._control is None or not self._control.usable:
            self._control = connect()
        return self._control.call(request, body)

    def _stream(self, name: str, text: str) -> None:
        if self._echo:  # the terminal has shown what was typed
            known, self._echo = self._echo, ""
            text = text.removeprefix(known)
        stream = sys.stderr if name == "stderr" else sys.stdout
        stream.write(_shown(text, stream.isatty()))
        stream.flush()
        if text:
            self._line_open = not text.endswith("\n")

    def _show(self, item: Data) -> None:
        if item["kind"] == "stream":
            self._stream(item["name"], item["text"] or "")
        elif item["kind"] != "error" and item["text"]:
            self._finish_line()
            prefix = self._value_prefix if item["kind"] == "execute_result" else ""
            text = printable(item["text"])
            print(f"{painted(prefix, 'red', sys.stdout) if prefix else ''}{_lines_below(prefix, text)}{text}", flush=True)

    def _finish_line(self) -> None:
        if self._line_open:
            self._line_open = False
            print(flush=True)

    def _read_line(self, *, password: bool) -> str | None:
        """Return a line of standard input; None at its end."""
        self._line_open = False
        if password and sys.stdin.isatty():
            import getpass

            self._echo = "*" * 8 + "\n"
            return getpass.getpass("")
        line = sys.stdin.readline()
        if sys.stdin.isatty():
            self._echo = line.rstrip("\n") + "\n"
        return line.rstrip("\n") if line else None

    def _decide(self, data: Data) -> None:
        if not sys.stdin.isatty():
            _say_what_waits(data)
            return
        print(painted(f"{data['kind']}: {printable(data['text'], lines=False)}", "yellow", sys.stdout))
        while True:
            print("allow it? [y]es, [n]o, [c]: this call always, [t]: this tool always > ", end="", flush=True)
            given = sys.stdin.readline()
            answer = given.strip().lower()[:1] if given else "n"
            if answer in tuple("ynct"):
                break
        always = {"c": "call", "t": "tool"}.get(answer, "")
        if not self.answer(Decide((data["id"],), answer != "n", always, by="terminal")):
            say("it no longer waits: somebody else has decided, or its time has run out")


def _lines_below(prefix: str, text: str) -> str:
    """Return a line feed if a value of several lines stands behind a prefix, as in IPython."""
    return "\n" if prefix and "\n" in text else ""


def _shown(text: str, terminal: bool) -> str:
    """Return output as it is written. A carriage return begins the line anew, as progress bars want it, and does no more."""
    if not terminal:
        return text
    if "\r" not in text:
        return printable(text)
    return "\r\x1b[K".join(map(printable, text.replace("\r\n", "\n").split("\r")))


def note_on(result: Data) -> str:
    """Return what is to be said about how the code was stopped; empty if it ended by itself."""
    notes = {"timeout": "stopped: its time is up (--timeout SECONDS gives it more)", "interrupted": "interrupted"}
    note = notes.get(result["status"], "")
    if result["recovery"] == "restarted":
        note = f"{note or 'its kernel has ended'}; the session has a fresh kernel, without variables"
    return note


def exit_status(result: Data) -> int:
    """Return the exit status for a result."""
    known = {"success": problems.OK, "timeout": problems.TIMED_OUT, "interrupted": problems.INTERRUPTED}
    return known.get(result["status"], problems.FAILED)
