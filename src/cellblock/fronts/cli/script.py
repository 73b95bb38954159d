"""``cellblock run``: runs a script in a session that ends with it."""

from __future__ import annotations

import base64
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from cellblock.errors import DaemonError
from cellblock.fronts.cli import live
from cellblock.fronts.cli.daemon_access import connected, session_options
from cellblock.fronts.cli.execute import milliseconds, read_source
from cellblock.fronts.cli.problems import OK, say
from cellblock.model import STATE_LOST
from cellblock.operations.executions import Answer, Submit
from cellblock.operations.sessions import Create, Destroy

if TYPE_CHECKING:
    from cellblock.model import OutputItem

_IDLE = 60
"""Seconds after which the session ends if this program was killed and its script has ended."""
_PIECE = 48 * 1024
"""Bytes of standard input that are sent to the script at once."""

_RUN = """\
def _cellblock_run(source, path, arguments):
    import atexit, base64, builtins, io, linecache, sys, threading, traceback, types

    shell, at_exit = get_ipython(), []

    class Stdin(io.RawIOBase):
        left, ended = b"", False

        def readable(self):
            return True

        def readinto(self, buffer):
            if not self.left and not self.ended:
                try:
                    self.left = base64.b64decode(shell.line())
                except EOFError:
                    self.ended = True
            part, self.left = self.left[: len(buffer)], self.left[len(buffer) :]
            buffer[: len(part)] = part
            return len(part)

    def read_line(prompt="", /):
        print(prompt, end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            raise EOFError("EOF when reading a line")
        return line.removesuffix("\\n")

    def register(function, *args, **kwargs):
        at_exit.append((function, args, kwargs))
        return function

    source = base64.b64decode(source)
    text = source.decode("utf-8", "replace")
    sys.stdin = io.TextIOWrapper(io.BufferedReader(Stdin()), encoding="utf-8", errors="surrogateescape")
    builtins.input, atexit.register = read_line, register
    sys.argv = [path, *arguments]
    sys.path.insert(0, path.rpartition("/")[0])
    linecache.cache[path] = len(text), None, [line + "\\n" for line in text.split("\\n")], path
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    module.__file__, module.__builtins__ = path, builtins
    status = 0
    try:
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
    except SystemExit as end:
        status = end.code
    except BaseException as error:  # Python prints every exception of a script and then runs its exit handlers
        told = traceback.TracebackException(type(error), error, error.__traceback__.tb_next, compact=True)
        # The handler of the signal, and `read_line`.
        ours = sys.modules["cellblock.worker"].__path__[0], _cellblock_run.__code__.co_filename
        told.stack[:] = [frame for frame in told.stack if not frame.filename.startswith(ours)]
        told.print()
        if isinstance(error, KeyboardInterrupt):
            raise
        status = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    for function, args, kwargs in reversed(at_exit):
        try:
            function(*args, **kwargs)
        except Exception:  # as Python does: one handler that fails does not keep the others from running
            traceback.print_exc()
    if status is None:
        status = 0
    if not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    if status & 255:
        raise SystemExit(status & 255)


"""


class _Script(live.Terminal):
    """A reader that shows the script's output without traces of the cell that runs it, and forwards standard input."""

    raw = True

    def __init__(self) -> None:
        super().__init__()
        self._reading = ""

    @property
    def asks(self) -> bool:
        return bool(self._reading) or super().asks

    def take(self, kind: str, data: live.Data, execution: str) -> None:
        if kind == "input":
            self._reading = execution
        else:
            super().take(kind, data, execution)

    def read(self) -> None:
        if super().asks:
            super().read()
            return
        try:
            piece = os.read(0, _PIECE)
        except OSError:
            piece = b""  # closed
        execution, self._reading = self._reading, ""
        self._questions.tell(Answer(execution, end=not piece), base64.b64encode(piece))

    def end(self, result: live.Data) -> None:
        error = result["error"]
        if result["status"] == "died":
            cause = error["evalue"].removeprefix("The kernel died: ").removesuffix(f". {STATE_LOST}")
            self._finish_line()
            say(f"the script has died: {cause}")
        if result["status"] in ("died", "timeout", "interrupted") or (error and error["ename"] == "SystemExit"):
            # The script's own traceback was already printed, and its session is not used afterwards.
            result = {**result, "error": None, "recovery": None}
        super().end(result)


class _Unseen(_Script):
    """A reader that shows nothing until the script has ended."""

    def take(self, kind: str, data: live.Data, execution: str) -> None:
        if kind in ("input", "approval", "decided"):
            super().take(kind, data, execution)

    def end(self, result: live.Data) -> None:
        from cellblock.model import MODEL_CHARS, CodeExecutionResult

        found, status = CodeExecutionResult.from_dict(dict(result)), _status(result)
        if found.error is not None and found.status != "died":
            # The script's own traceback is in its output; the cell's would show how the script is run.
            own = "".join(_own_text(item) for item in found.outputs).strip("\n")
            error = None if found.error.ename == "SystemExit" else replace(found.error, traceback=[])
            found = replace(found, status=found.status if error else "success", error=error, text=own or None)
        text = found.for_model(MODEL_CHARS)
        print(f"{text}\n(exit status {status})" if status else text)


def _own_text(item: OutputItem) -> str:
    """Return the script's part of an output, without the error of the cell that ran it."""
    if item.kind == "error":
        return ""
    return item.text or "" if item.kind == "stream" else f"{item.text}\n"


def run(file: str, arguments: list[str], options: dict[str, Any], timeout: str | None, *, for_model: bool = False) -> int:
    """Run a script; return its exit status.

    Args:
        file: The script's path; ``-`` for standard input, which the script then cannot read.
        arguments: The script's ``sys.argv[1:]``.
        options: Options of the session.
        timeout: Limit in seconds.
        for_model: Whether to print one text for a language model at the end instead.

    Raises:
        CellblockError: The script could not be run.
    """
    limit = -1 if timeout is None else milliseconds(timeout)
    if file == "-":
        source, path = sys.stdin.buffer.read(), "<stdin>"
    else:
        source, path = read_source(file), os.path.abspath(file)
    call = f"_cellblock_run({base64.b64encode(source).decode()!r}, {path!r}, {arguments!r})"
    reader = _Unseen() if for_model else _Script()
    with _ended_by_signals(), connected() as connection:
        session = connection.call(Create("", session_options({"idle_timeout": _IDLE} | options)))["kernel_id"]
        request = Submit(session, timeout=limit, live=True, stdin=True)
        try:
            body = (_RUN + call).encode("utf-8", "surrogatepass")
            result = live.follow(connection, lambda: str(connection.call(request, body)["id"]), reader, session)
        finally:
            with suppress(DaemonError), connected() as another:
                another.call(Destroy(session))
    return _status(result)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Convert SIGTERM and SIGHUP to a regular exit, so that the session ends, too."""

    def end(number: int, frame: object) -> NoReturn:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _status(result: live.Data) -> int:
    error = result["error"]
    if result["exit_status"] is not None:
        status = int(result["exit_status"])
        return status if status >= 0 else 128 - status  # as shells report a signal
    if error and error["ename"] == "SystemExit" and error["evalue"].isascii() and error["evalue"].isdigit():
        return int(error["evalue"]) & 255
    return OK if result["status"] == "success" else live.exit_status(result)
