"""Commands of cells that need approval: requested with exactly the text that is then run.

There are two kinds of sessions. In one, this process runs approved commands itself, and nothing stops code that does not ask.
In the other, the system forbids this process to execute programs, and the host has init run them.
"""

from __future__ import annotations

import _posixsubprocess
import asyncio
import contextlib
import functools
import os
import subprocess
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from IPython.core.async_helpers import _AsyncIOProxy
from IPython.core.error import UsageError
from IPython.core.magics.script import ScriptMagics
from IPython.utils._process_common import arg_split

from cellblock.worker.replaced import replace
from cellblock.worker.requests import Requester

_FORBIDDEN = (
    "Direct {way} calls are not allowed: programs are forbidden in this session. Run a command with !cmd or %%bash, so that "
    "it can be approved; of multiprocessing's start methods, 'fork' works"
)
_WAYS = (
    *(f"exec{kind}" for kind in ("v", "ve", "vp", "vpe", "l", "le", "lp", "lpe")),
    *(f"spawn{kind}" for kind in ("v", "ve", "vp", "vpe", "l", "le", "lp", "lpe")),
    "posix_spawn",
    "posix_spawnp",
    "system",
)
"""Functions of `os` that execute programs."""


class ProgramForbiddenError(PermissionError, RuntimeError):
    """Code tried to execute a program itself. A `RuntimeError` too, for compatibility with ipybox."""


class _Asked(NamedTuple):
    """An approved command.

    Attributes:
        number: Its number.
        surroundings: Its environment and directory for `subprocess.Popen`: a thread may have changed them since it was shown.
    """

    number: int
    surroundings: dict[str, Any]


class Commands:
    """Runs approved commands.

    Attributes:
        forbidden: Whether the system forbids this process to execute programs.
    """

    def __init__(self, asker: Requester, *, forbidden: bool) -> None:
        self.forbidden = forbidden
        self._asker = asker
        self._first = dict(os.environ)
        if forbidden:
            _say_so()

    def expect(self, name: str, value: str | None) -> None:
        """Record a variable that the host has set or removed, so that it is not shown as a change by the code."""
        if value is None:
            self._first.pop(name, None)
        else:
            self._first[name] = value

    def show(self, command: str) -> int:
        """Run a shell line with the cell's output. Return its exit status, negative for a signal."""
        line = str.__str__(command)  # exactly `str`: a subclass could return another text each time
        asked = self._ask("shell", line)
        if self.forbidden:
            return os.waitstatus_to_exitcode(self._asker.outcome(asked.number).status)
        process = subprocess.Popen(line, shell=True, **asked.surroundings)  # noqa: S602
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()  # it got the same signal
            raise

    def collect(self, command: str) -> tuple[str, int]:
        """Run a shell line. Return its output on both streams, and its exit status."""
        line = str.__str__(command)
        asked = self._ask("shell", line, keep="together")
        if self.forbidden:
            ended = self._asker.outcome(asked.number)
            return _take(ended.place, ".out"), os.waitstatus_to_exitcode(ended.status)
        done = subprocess.run(  # noqa: S602
            line,
            shell=True,
            **asked.surroundings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        return done.stdout.decode("utf-8", "replace"), done.returncode

    def script(self, magics: Any, line: str, cell: str, run: Callable[[str, str], None]) -> None:
        """Run the script of a ``%%bash`` or ``%%script`` cell.

        Args:
            magics: IPython's magics object, for its parser and its variables.
            line: The program, its arguments, and options of the magic.
            cell: The script.
            run: Runs it in this process.
        """
        line, cell = str.__str__(line), str.__str__(cell)
        options, program = magics.shebang.parser.parse_known_args(arg_split(line, posix=True))
        if not program:
            raise UsageError("name the program that runs the script: %%script bash")
        text = cell if cell.endswith("\n") else f"{cell}\n"
        text = text.encode("utf-8", "replace").decode()  # as IPython does
        if self.forbidden and options.bg:
            raise UsageError("--bg: in this session, use '!command &' to run something in the background")
        kept = {(False, False): "nothing", (True, False): "out", (False, True): "err", (True, True): "both"}
        keep = kept[bool(options.out), bool(options.err)] if self.forbidden else "nothing"
        asked = self._ask("shell_magic", text, program=tuple(program), keep=keep)
        if not self.forbidden:
            run(line, text)
            return
        ended = self._asker.outcome(asked.number)
        for name, suffix in ((options.out, ".out"), (options.err, ".err")):
            if name:
                magics.shell.user_ns[name] = _take(ended.place, suffix)
        status = os.waitstatus_to_exitcode(ended.status)
        if options.raise_error and status:
            raise subprocess.CalledProcessError(status, text)

    def _ask(self, tool: Any, text: str, **details: Any) -> _Asked:
        now, directory = dict(os.environ), os.getcwd()
        changes = [f"{name}={value}" for name, value in now.items() if self._first.get(name) != value]
        changes += [name for name in self._first if name not in now]
        number = self._asker.command(tool, text, cwd=directory, changes=tuple(sorted(changes)), **details)
        return _Asked(number, {"executable": now.get("SHELL", "/bin/sh"), "env": now, "cwd": directory})


def guard_scripts() -> None:
    """Make script cells ask for approval where needed, and leave no thread.

    Call it before the shell is created, which keeps a reference to the method.
    """
    original = ScriptMagics.shebang

    @functools.wraps(original)
    def shebang(self: Any, line: str, cell: str) -> None:
        run = functools.partial(original, self)
        try:
            if self.shell.commands is None:
                run(line, cell)
            else:
                self.shell.commands.script(self, line, cell, run)
        finally:
            _end_loop(self)

    ScriptMagics.shebang = shebang  # type: ignore[method-assign]


def end_scripts(shell: Any) -> str | None:
    """End the remains of script cells before this process is copied. Return why it cannot be copied, if so."""
    magics = shell.magics_manager.registry.get("ScriptMagics")
    if magics is None or magics.event_loop is None:  # the usual case; writing nothing here avoids copying pages
        return None
    _end_loop(magics)
    if magics.event_loop is None:
        return None
    return "a program of a script cell (%%bash) still runs: wait until it ends, or end it (%killbgscripts, !kill)"


def _end_loop(magics: Any) -> None:
    """End the event loop of script cells, and its thread, which a copy of the kernel would not have.

    They stay if they may still be needed: by a background program, or by one that an interrupt did not end.
    """
    magics.bg_processes = [process for process in magics.bg_processes if process.returncode is None]
    loop = magics.event_loop
    if loop is None or magics.bg_processes or asyncio.all_tasks(loop) or not _free_readers(magics.shell.user_ns):
        return
    magics.event_loop = None
    if (finalizer := getattr(magics, "_event_loop_finalizer", None)) is not None:  # newer IPythons have one
        finalizer.detach()
    thread = next(one for one in threading.enumerate() if getattr(one, "_target", None) == loop.run_forever)
    loop.call_soon_threadsafe(lambda: loop.call_soon(loop.stop))  # after the loop has handled the program's end
    thread.join()
    loop.close()


def _free_readers(names: dict[str, Any]) -> bool:
    """Detach the variables of ``--out``, ``--err`` and ``--proc`` from the loop. Return whether that is possible.

    A reader with a program's complete output can return it without a loop.
    """
    found = {name: vars(value)["_obj"] for name, value in names.items() if type(value) is _AsyncIOProxy}
    for one in found.values():
        for reader in (one, getattr(one, "stdout", None), getattr(one, "stderr", None)):
            # Not at_eof(), which is also false while there is something to read.
            if isinstance(reader, asyncio.StreamReader) and not vars(reader)["_eof"]:
                return False
    names.update(found)
    return True


def _take(place: str | None, suffix: str) -> str:
    """Return a command's output from its file; empty if the program was never started."""
    path = f"{place}{suffix}"
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return ""
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _say_so() -> None:
    """Make Python's own ways to start programs explain why they fail. The system forbids all other ways as well."""
    import pty

    _posixsubprocess.fork_exec = _refusal("subprocess")
    subprocess._fork_exec = _refusal("subprocess")  # type: ignore[attr-defined]  # noqa: SLF001
    for name in _WAYS:
        replace(os, name, _refusal(f"os.{name}()"))
    replace(pty, "spawn", _refusal("pty.spawn()"))


def _refusal(way: str) -> Callable[..., NoReturn]:
    def refuse(*_args: object, **_options: object) -> NoReturn:
        raise ProgramForbiddenError(_FORBIDDEN.format(way=way))

    return refuse
