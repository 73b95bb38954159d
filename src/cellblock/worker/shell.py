"""IPython's shell, created once in the zygote and attached to a channel in each kernel."""

from __future__ import annotations

import html
import importlib
import importlib.util
import inspect
import os
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType, ModuleType
from typing import Any

import IPython
from IPython.core import interactiveshell, oinspect, ultratb
from IPython.core.error import UsageError
from IPython.core.interactiveshell import ExecutionResult
from IPython.core.profiledir import ProfileDir
from IPython.utils.text import LSString, SList
from traitlets.config import Config

from cellblock.wire.fields import to_bytes
from cellblock.worker import by_value, pip, plotly_figures, whole_lines
from cellblock.worker.commands import Commands, guard_scripts
from cellblock.worker.completer import look_at_few
from cellblock.worker.display import Hook, Publisher, send_bundle
from cellblock.worker.notebook import NotebookShell
from cellblock.worker.outbox import Outbox
from cellblock.worker.prose import code_of
from cellblock.worker.streams import keep_order

_MAX_ERROR_TEXT = 256 * 1024
_MAX_TRACEBACK = 1024 * 1024
_MAX_TRACEBACK_PARTS = 1000
_EXPANDED = frozenset("${}")
"""Characters that introduce variables in a line."""
_CALLS_BACK = "ipywidgets.widgets.widget"  # shows exceptions of callbacks, and continues
_SHOWING = frozenset(("showtraceback", "showsyntaxerror", "showindentationerror"))
_RUN_PIP = os.path.join(os.path.dirname(__file__), "run_pip.py")
_OURS = os.path.dirname(__file__) + os.sep
_DATABASE: Any = getattr(interactiveshell, "PickleShareDB", None)
"""The class of `Shell.db` in older versions of IPython, which open it when they make a shell."""


@dataclass(frozen=True, slots=True)
class CellError:
    """The exception that ended a cell.

    Attributes:
        ename: Name of its class.
        evalue: Its message.
        traceback: The parts of its traceback.
        count: Number of values displayed before it: figures are shown later.
    """

    ename: str
    evalue: str
    traceback: tuple[str, ...]
    count: int | None = None

    @classmethod
    def of(cls, error: BaseException) -> CellError:
        """Describe an exception that IPython has not shown."""
        name, text = type(error).__name__, _clip(_safe_str(error))
        return cls(name, text, (f"{name}: {text}",))


class Shell(NotebookShell):
    """The shell of one kernel. It outputs through the outbox, writes nothing to disk, and has no terminal and no threads."""

    displayhook_class = Hook
    display_pub_class = Publisher

    display_pub: Publisher
    error: CellError | None = None
    _inner = 0
    _last_shown: BaseException | None = None
    packages: Callable[[list[str]], None] | None = None
    line: Callable[[], str]
    environment: dict[str, str]
    commands: Commands | None = None
    _check: Callable[[], None] | None = None
    _database: Any = None

    def init_ipython_dir(self, ipython_dir: str | None) -> None:
        """Do nothing: the zygote has no home, and each kernel gets its own."""

    def init_profile_dir(self, profile_dir: Any) -> None:
        """Do nothing on the disk."""
        self.profile_dir = _Profile()

    @property
    def db(self) -> Any:
        """The database of ``%store`` and ``%cd``, in the kernel's home, opened on first use."""
        if self._database is None:
            kind = _DATABASE or importlib.import_module("IPython.external.pickleshare").PickleShareDB
            self._database = kind(os.path.join(_Profile().location, "db"))
        return self._database

    @db.setter
    def db(self, value: Any) -> None:
        self._database = value

    def init_completer(self) -> None:
        """Examine each variable once: IPython's two namespaces are the same here, and it searches both."""
        super().init_completer()
        if self.Completer.global_namespace is self.Completer.namespace:
            self.Completer.global_namespace = {}
        look_at_few(self.Completer)

    def init_builtins(self) -> None:
        """Leave IPython's builtins in place permanently.

        IPython adds them for each cell and removes them again. That invalidates the interpreter's caches of builtins, in all
        functions of the process, each time.
        """
        super().init_builtins()
        self.builtin_trap.__enter__()

    def init_virtualenv(self) -> None:
        """Do nothing: the host has chosen the interpreter."""

    def init_magics(self) -> None:
        """Make ``%pip install`` a request to the host, which knows the package index."""
        super().init_magics()
        ordinary: Callable[[str], None] = self.find_line_magic("pip")

        def run_pip(line: str) -> None:
            """Run pip for this session; its packages are removed with the session."""
            if len(line) > pip.MAX_LINE:
                raise UsageError(
                    f"%pip accepts a line of {pip.MAX_LINE} characters: put the requirements in a file, for %pip -r"
                )
            command, *arguments = shlex.split(line) or [""]
            if command == "install" and self.packages is not None:
                self.packages(arguments)
            elif importlib.util.find_spec("pip") is None:  # as in environments created by uv
                self.system(f"{shlex.quote(sys.executable)} -I {shlex.quote(_RUN_PIP)} {line}")
            else:
                ordinary(line)

        self.register_magic_function(run_pip, "line", "pip")  # type: ignore[arg-type]  # it does take functions

    def atexit_operations(self) -> None:
        """Release the code's objects, so that their finalizers run, and remove its temporary files.

        The rest of IPython's cleanup prepares the shell for further use, and closes a history that does not exist here.
        """
        self.displayhook.flush()
        for name in self.user_ns.keys() - {"__builtin__", "__builtins__", "__name__"}:
            self.user_ns.pop(name, None)
        self.user_ns_hidden.clear()
        self._atexit_once_called = True
        super().atexit_operations()

    def showtraceback(self, *args: Any, **kwargs: Any) -> None:
        """Show an exception, unless it is an exit without an error."""
        value = sys.exc_info()[1]
        if isinstance(value, SystemExit) and value.code in (None, 0):
            return
        if value is not None:
            _cut_our_frames(value)
        with _modules_remembered():
            super().showtraceback(*args, **kwargs)

    def run_cell(self, *args: Any, **kwargs: Any) -> ExecutionResult:
        """Run a cell inside of a cell, as ``%%capture`` does: an error in it does not end the outer one."""
        running = self.displayhook.exec_result
        self._inner += 1
        try:
            result: ExecutionResult = super().run_cell(*args, **kwargs)
            return result
        finally:
            self._inner -= 1
            self.displayhook.exec_result = running

    async def run_ast_nodes(self, *args: Any, **kwargs: Any) -> bool:
        """Run the statements of a cell, unless it was interrupted before. IPython ignores interrupts in its callbacks."""
        if self._check is not None and not self._inner:
            check, self._check = self._check, None
            check()
        has_raised: bool = await super().run_ast_nodes(*args, **kwargs)
        return has_raised

    def show_usage_error(self, exc: Any) -> None:
        """Treat a usage error of a magic as the error that ended the cell."""
        self.error = CellError("UsageError", _clip(_safe_str(exc)), (f"UsageError: {_clip(_safe_str(exc))}",))

    def system(self, cmd: str) -> None:
        """Run ``!cmd``. Its output goes to the kernel's own descriptors, and so streams in order with everything else.

        IPython uses a pseudo-terminal, which costs 0.1 s per command and makes programs write for a terminal.
        """
        command = self.var_expand(cmd, depth=1)
        if self._installs(command):
            self.user_ns["_exit_code"] = 0
            return
        if self.commands is not None:
            self._ended(self.commands.show(command))
            return
        process = subprocess.Popen(command, shell=True, executable=os.environ.get("SHELL", "/bin/sh"))  # noqa: S602
        try:
            self._ended(process.wait())
        except KeyboardInterrupt:
            # The command got the same signal, as in a terminal; if it ignores it, the host kills it later.
            process.wait()
            raise KeyboardInterrupt from None

    def _ended(self, status: int) -> None:
        """Record a command's exit status, and show it if it is not 0: many commands fail silently."""
        self.user_ns["_exit_code"] = status
        if status:
            sys.stderr.write(f"[exit status {status}]\n" if status > 0 else f"[ended by signal {-status}]\n")

    def var_expand(self, cmd: str, depth: int = 0, *args: Any, **options: Any) -> str:
        """Expand variables in a line. IPython takes seconds for a long one, even without variables."""
        if not _EXPANDED.intersection(cmd):
            return cmd
        expanded: str = super().var_expand(cmd, depth + 1, *args, **options)
        return expanded

    def _installs(self, command: str) -> bool:
        """Let the host install packages if a shell line is ``pip install``. Return whether it is.

        Raises:
            UsageError: It is combined with other commands, which cannot work here; or as `Requester.install`.
        """
        if self.packages is None or "install" not in command:
            return False
        if (arguments := pip.installs(command)) is not None:
            self.packages(arguments)
            return True
        if pip.installs_among_others(command) and pip.cannot_install():
            raise UsageError("pip cannot install from a shell command here: write '%pip install ...' on a line of its own")
        return False

    def getoutput(self, cmd: str, split: bool = True, depth: int = 0) -> Any:
        """Run ``x = !cmd``, ``!!cmd`` or ``%sx cmd``. Return its output on both streams."""
        if self.commands is None and "install" not in cmd:
            return super().getoutput(cmd, split, depth + 1)
        command = self.var_expand(cmd, depth=depth + 1)  # once: it may run code of the user's
        if self._installs(command):
            return SList() if split else LSString()  # pip's output is shown
        if cmd.rstrip().endswith("&"):
            raise OSError("Background processes not supported.")
        said, status = _collect(command) if self.commands is None else self.commands.collect(command)
        if self.system_raise_on_error:
            self.user_ns["_exit_code"] = status
            if status:
                raise subprocess.CalledProcessError(status, cmd)
        return SList(said.splitlines()) if split else LSString(said)

    def _showtraceback(self, etype: Any, evalue: Any, stb: list[str]) -> None:
        name, text = getattr(etype, "__name__", str(etype)), _clip(_safe_str(evalue))
        count = getattr(self.display_pub, "count", None)  # under %%capture there is another publisher
        error = CellError(name, text, _clip_parts(stb), count)
        before, self._last_shown = self._last_shown, evalue
        running = self.displayhook.exec_result
        if not self._inner and (running is None or running.error_in_exec is evalue):
            self.error = error
            return
        # This did not end the cell: %tb, %run, a __repr__, or a callback whose caller ignores errors. The cell continued.
        send_bundle(Publisher.outbox, "error", {"text/plain": "\n".join(error.traceback)}, None)
        if self.error is None and evalue is not before and _shown_by_ipython():
            self.error = error  # the host recognises by its traceback that it was shown already

    async def run(self, code: str, check: Callable[[], None], *, silent: bool = False, draw: bool = True) -> CellError | None:
        """Run one cell to its end, with everything that belongs to a cell in Jupyter.

        Args:
            code: Its source.
            check: Raises KeyboardInterrupt if the cell was interrupted before its code began. Later interrupts raise
                directly.
            silent: Whether it has no execution number and no history entry.
            draw: Whether its plots are shown at its end.

        Returns:
            The exception that ended it, or None.
        """
        check()
        self._check = check
        self.error = None
        failure = None
        try:
            code = code_of(code, self.transform_cell)
            transformed = self.transform_cell(code)
        except Exception:
            transformed, failure = code, sys.exc_info()
        try:
            result = await self.run_cell_async(
                code, store_history=not silent, transformed_cell=transformed, preprocessing_exc_tuple=failure
            )
        finally:
            if draw:
                # Plots are drawn here.
                self.events.trigger("post_execute")
                self.display_pub.update_widgets()
        if not silent:
            self.events.trigger("post_run_cell", result)
        value = result.error_before_exec or result.error_in_exec
        if value is None:
            return self.error  # an error that did not end the cell
        if isinstance(value, SystemExit) and value.code in (None, 0):
            return None
        if self.error is None:
            # IPython did not show it: usually bdb.BdbQuit.
            self.error = CellError.of(value)
        return self.error


Shell.__name__ = Shell.__qualname__ = "ZMQInteractiveShell"  # the name by which libraries recognise a notebook's shell


class _Profile(ProfileDir):
    """IPython's own directory (``%store``, aliases) in the kernel's home. It is not created in advance."""

    @property
    def location(self) -> str:  # type: ignore[override]  # a trait in the base class, which creates directories
        return os.path.join(os.path.expanduser("~"), ".ipython", "profile_default")


def create(outbox: Outbox) -> Shell:
    """Create the shell that every kernel of this process inherits.

    Args:
        outbox: The outbox for its output, attached to a channel later.
    """
    config = Config()
    config.InteractiveShell.colors = "nocolor" if IPython.version_info[0] >= 9 else "NoColor"
    config.InteractiveShell.display_page = True  # `obj?` shows a page instead of opening a pager
    config.InteractiveShell.autoindent = False
    config.InteractiveShell.history_load_length = 0
    config.HistoryManager.hist_file = ":memory:"
    config.HistoryManager.enabled = False  # no database, and no thread that writes to it
    config.IPKernelApp.connection_file = ""  # libraries look for this section to detect a notebook
    config.Completer.use_jedi = False  # loads 30 MB for completions that use the live objects anyway
    Publisher.outbox = Hook.outbox = outbox
    keep_order(outbox)
    # In files with more lines, IPython shows a frame without parsing the file. The result is the same, and parsing a file of
    # pandas takes longer than a cell may take to stop.
    ultratb.FAST_THRESHOLD = 500
    # IPython also renders what it inspects as unused HTML. For colours, it would load a lexer, which takes longest.
    oinspect.pylight = lambda code: f"<pre>{html.escape(code)}</pre>"
    guard_scripts()
    by_value.install()
    whole_lines.install()
    plotly_figures.install()
    if _DATABASE is not None:
        setattr(interactiveshell, "PickleShareDB", lambda root: None)  # noqa: B010  # it would be in this process's home
    shell = Shell.instance(config=config)
    # IPython's hint on how to leave a terminal, shown whenever a cell calls sys.exit().
    warnings.filterwarnings("ignore", message="To exit: use")
    return shell


def _collect(command: str) -> tuple[str, int]:
    """Run a shell line. Return its output on both streams, and its exit status."""
    shell = os.environ.get("SHELL", "/bin/sh")
    done = subprocess.run(  # noqa: S602
        command,
        shell=True,
        executable=shell,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.stdout.decode("utf-8", "replace"), done.returncode


@contextmanager
def _modules_remembered() -> Iterator[None]:
    """Cache the module of each code object. IPython asks for each frame, and searches all modules each time.

    After 20,000 calls of one function, that takes longer than a cell may take to end.
    """
    look, found = inspect.getmodule, dict[CodeType, ModuleType | None]()

    def getmodule(object: object, _filename: str | None = None) -> ModuleType | None:  # noqa: A002  # the original's names
        if not isinstance(object, FrameType):
            return look(object, _filename)
        if object.f_code not in found:
            found[object.f_code] = look(object, _filename)
        return found[object.f_code]

    inspect.getmodule = getmodule
    try:
        yield
    finally:
        inspect.getmodule = look


def _cut_our_frames(error: BaseException) -> None:
    """Remove our frames from a traceback: frames of `input`, ``!cmd``, an interrupt, and wrappers of handlers and `os.write`.

    IPython hides marked frames, but mentions them, and never hides the last one.
    """
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        link = chain.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        chain += (link.__cause__, link.__context__)
        trace = link.__traceback__
        while trace is not None:
            while trace.tb_next is not None and trace.tb_next.tb_frame.f_code.co_filename.startswith(_OURS):
                trace.tb_next = trace.tb_next.tb_next
            trace = trace.tb_next


def _safe_str(value: object) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"<unprintable: {type(error).__name__}>"


def _clip_parts(parts: list[str]) -> tuple[str, ...]:
    """Return a traceback that fits into one frame, however long its chain of exceptions."""
    clipped = tuple(map(_clip, parts))
    if len(clipped) <= _MAX_TRACEBACK_PARTS and sum(map(len, map(to_bytes, clipped))) <= _MAX_TRACEBACK:
        return clipped
    return (_clip("\n".join(clipped)),)


def _shown_by_ipython() -> bool:
    """Return whether IPython shows an exception that nothing else has handled.

    Code that calls `showtraceback` itself has caught the exception, for example ipywidgets' output widget.
    """
    frame = sys._getframe(1)  # noqa: SLF001  # `inspect.stack` reads the sources of all frames
    while frame.f_back is not None and frame.f_code.co_name not in _SHOWING:
        frame = frame.f_back
    while frame.f_back is not None and frame.f_code.co_name in _SHOWING:
        frame = frame.f_back
    caller = str(frame.f_globals.get("__name__"))
    return caller.startswith("IPython.") or caller == _CALLS_BACK


def _clip(text: str) -> str:
    """Return at most 256 KiB of a text, from its beginning and its end. A character takes up to six bytes on the wire."""
    if 6 * len(text) <= _MAX_ERROR_TEXT or len(data := to_bytes(text)) <= _MAX_ERROR_TEXT:
        return text
    half = _MAX_ERROR_TEXT // 2
    head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
    return f"{head}\n… {len(data) - 2 * half:,} bytes left out …\n{tail}"
