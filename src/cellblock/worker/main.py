"""The worker: takes messages, runs cells, and answers. It acts only on requests of the host."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import ctypes
import errno
import gc
import io
import os
import socket
import sys
import time
import traceback as tracebacks
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal, NoReturn, Protocol

from cellblock.errors import ONLY_PROXY, ProtocolError
from cellblock.wire.fields import MAX_MIMES, MAX_TEXT
from cellblock.wire.frames import VERSION
from cellblock.wire.messages import (
    Changes,
    Complete,
    Continue,
    Decided,
    Ended,
    Execute,
    Idle,
    Idling,
    InputReply,
    Inspect,
    Installed,
    Message,
    Park,
    Parked,
    Ready,
    Reply,
    Shutdown,
)
from cellblock.worker.channel import Channel
from cellblock.worker.commands import Commands, end_scripts
from cellblock.worker.comms import Comms
from cellblock.worker.editor_answers import Questions
from cellblock.worker.forks import arenas, hot_pages
from cellblock.worker.forks import safety as fork_safety
from cellblock.worker.forks.descriptors import Moved
from cellblock.worker.forks.sockets import note_pairs
from cellblock.worker.gate import GATE
from cellblock.worker.loop import Interrupter, Standstill, drop_work, has_work, new_loop, renew
from cellblock.worker.offline import explain_failures
from cellblock.worker.outbox import Outbox
from cellblock.worker.requests import Requester
from cellblock.worker.shell import CellError, Shell
from cellblock.worker.streams import replace_streams, restore_streams

_SOON = 0.1
"""Seconds. If a cell begins later than this after the last copy, the next one probably does, too: its client does not notice
two milliseconds, but the cell's pages would take megabytes of memory."""

_MOST_FAILURES = 1000
"""After how many errors of the loop, without a message of the host between them, code must have broken it permanently."""

_fflush = ctypes.CDLL(None).fflush

_TRACE = "TRACEPARENT"
"""The environment variable by which programs take a trace context."""


class StartedAnew(Protocol):
    """The specification of a kernel that is created from a copy."""

    @property
    def stay_in(self) -> str | None:
        """The directory to return to after each cell; None to keep changes of directory."""

    @property
    def to_inspect(self) -> bool:
        """Whether it is only inspected."""


class Worker:
    """One kernel's end of one channel.

    Attributes:
        stay_in: The directory to return to after each cell; None to keep changes of directory.
        context: The context variables of the session. All cells run in this context, so that settings of one cell hold in
            later ones: the precision of `decimal`, the print options of NumPy.
        installation: The directory of the packages that its code has installed, which another installation replaces.
        offline: Whether the session has no network, so that failed connections say so.
        commands: Whether commands need the host's approval; ``forbidden``: the host also runs them, because this process may
            not.
        fork_copy: Creates a numbered copy of this process, given whether the next cell is expected soon. Returns None here,
            and a specification in each kernel created from it.
    """

    def __init__(self, shell: Shell, outbox: Outbox, sock: socket.socket) -> None:
        """Attach a shell to a channel.

        Args:
            shell: From `shell.create`, before the fork.
            outbox: The shell's outbox.
            sock: The worker's end of the channel.
        """
        self._shell = shell
        self._outbox = outbox
        self._channel = Channel(sock)
        self.stay_in: str | None = None
        self.installation = ""
        self.offline: str | None = None
        self.commands: Literal["asked", "forbidden"] | None = None
        self.fork_copy: Callable[[int, bool], StartedAnew | None] | None = None
        self._waiting: deque[Message] = deque()
        self._task: asyncio.Task[None] | None = None
        self._begun = False
        self._thrown: BaseException | None = None
        self._broken: Exception | None = None
        self._failures = 0
        self._trace_before: str | None = None
        self._open = True
        self.loop = new_loop()
        self.context = contextvars.copy_context()
        self._interrupter = Interrupter(self.loop)
        self._comms: Comms | None = None
        self._threads = 3  # as the system counts them: two more than there are
        self._told_of_threads = False
        self._idle_since = -_SOON
        self._standstill: Standstill | None = None
        self._left_running = False
        """Whether the last cell left something that runs, since no copy was made after it."""
        self._questions = Questions(shell, self._interrupter)
        self._asker = Requester(self._channel, outbox, self._waiting.append)

    def touch_pages(self) -> None:
        """Run an empty silent cell, while nothing waits.

        A fork shares its parent's memory until it writes to it. A first cell writes to some 500 pages, and copying them takes
        longer than running it.
        """
        self._shell.transform_cell("x = 1")  # another line, such as `pass`, could be a magic, which few cells are
        self.loop.run_until_complete(self._shell.run_cell_async("pass", store_history=False, transformed_cell="pass\n"))
        self._shell.events.trigger("post_execute")
        self._shell.last_execution_result = None

    def run(self) -> None:
        """Serve the channel until the host sends `Shutdown` or closes it."""
        self._outbox.attach(self._channel)
        replace_streams(self._outbox)
        GATE.install(self._on_stray)
        self._interrupter.install()
        note_pairs()
        self._asker.take_places()
        self._asker.installation = self.installation
        self._shell.packages = self._asker.install
        self._shell.line = self._asker.line
        self._shell.can_ask = lambda: self._asker.allowed
        self._asker.environment = self._shell.environment = dict(os.environ)  # the session's initial environment
        if self.stay_in is not None:
            os.chdir(self.stay_in)
        self._shell.note_directory(Path.cwd(), first=True)  # the shell was created elsewhere
        if self.commands is not None:
            self._shell.commands = Commands(self._asker, forbidden=self.commands == "forbidden")
        if self.offline is not None:
            explain_failures(self.offline)
        elif "CELLBLOCK_EGRESS_PORT" in os.environ:
            explain_failures(ONLY_PROXY)
        self.loop.add_reader(self._channel.fileno(), self._on_readable)
        self._outbox.send(Ready(VERSION))
        while self._open:
            try:
                self.loop.run_forever()
            except (KeyboardInterrupt, SystemExit):
                # asyncio lets these two through the loop. The task they hit has ended with them; the others continue.
                continue
            except BaseException as error:
                self._failures += 1
                if self._failures > _MOST_FAILURES and isinstance(error, Exception):
                    self._broken = error
                    break
                self._on_stray(error)  # from a handler that hit a function that the loop itself calls: usually logging
        if self._outbox.forked:
            leave()  # a child that a background task of the code has forked, and that has finished
        self._outbox.settle()
        if self._broken is not None:
            raise self._broken

    def _on_stray(self, error: BaseException) -> None:
        if not isinstance(error, KeyboardInterrupt):  # the interrupter has handled it
            self.loop.call_soon_threadsafe(self._take_stray, error)

    def _take_stray(self, error: BaseException) -> None:
        """Pass an exception from a user's signal handler in the middle of the loop to the cell that awaits something."""
        if self._task is not None and self._begun:
            self._thrown = error
            self._task.cancel()
            return
        GATE.shut += 1
        try:
            self._outbox.write("stderr", "".join(tracebacks.format_exception(error)))
        finally:
            GATE.open()

    def close(self) -> None:
        """Revert `run` and the constructor, if the process continues: after warming up."""
        self._outbox.detach()
        restore_streams()
        self.loop.remove_reader(self._channel.fileno())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        asyncio.set_event_loop(None)
        self._channel.close()

    def _on_readable(self) -> None:
        GATE.shut += 1
        try:
            try:
                messages = self._channel.receive()
            except (OSError, ProtocolError) as error:
                # The code has written to it. The two ends are out of sync permanently.
                self._broken = error
                messages = None
            if messages is None:
                self._stop()
                return
            self._waiting.extend(messages)
            self._failures = 0
            try:
                self._next()
            except Exception as error:  # code has broken the loop, or asyncio: no more cells can run
                self._broken = error
                self._stop()
        finally:
            GATE.open()

    def _stop(self) -> None:
        self._open = False
        self.loop.stop()

    def _next(self) -> None:
        while self._waiting and self._task is None:
            match self._waiting.popleft():
                case Execute() as request:
                    self._standstill = None
                    self._thrown, self._begun = None, False
                    # Not with the loop's create_task: a task factory of the code may take no context, or run the task at once.
                    self._task = asyncio.Task(self._execute(request), loop=self.loop, context=self.context)
                    self._interrupter.watch(self._task)
                case Changes() | Complete() | Inspect() as question:
                    self._standstill = None
                    # Not in this callback, because signals do not interrupt it.
                    self.loop.call_soon(self._answer, question, context=self.context)
                case Park() as request:
                    self.loop.call_soon(self._park, request)
                case InputReply() | Installed() | Decided() | Ended():
                    pass  # the question was withdrawn by an interrupt
                case Idle():
                    self.loop.call_soon(self._say_if_idle)
                case Continue():
                    pass  # `_park` has waited for it
                case Shutdown():
                    self._stop()

    async def _execute(self, request: Execute) -> None:
        began = time.monotonic()
        self._begun = True  # a task that is cancelled before it begins never runs, and would not reply
        self._asker.allowed = request.stdin
        self._asker.echo = not request.parent
        # Shut as soon as the code has ended: from then on, no code can handle exceptions from handlers.
        try:
            if request.parent or self._comms is not None:
                self._note_parent(request.parent)
            if request.traceparent:
                self._enter_trace(request.traceparent)
            error = await self._shell.run(
                request.code, self._interrupter.check, silent=request.silent, draw=not request.silent or bool(request.parent)
            )
            GATE.shut += 1
        except (KeyboardInterrupt, asyncio.CancelledError):
            GATE.shut += 1
            # The interrupt hit IPython itself, just before or after the code.
            error = CellError("KeyboardInterrupt", "", ("KeyboardInterrupt: ",))
        except BaseException as failure:
            GATE.shut += 1
            # Code can break its shell, and so can an exception without a working __str__; that ends only its cell.
            error = self._shell.error or CellError.of(failure)
        try:
            if self._thrown is not None:
                error = CellError.of(self._thrown)
            elif error is not None and error.ename == "CancelledError" and self._interrupter.hits:
                traceback = (*error.traceback[:-1], "KeyboardInterrupt: ")
                error = replace(error, ename="KeyboardInterrupt", evalue="", traceback=traceback)
            if request.traceparent:
                self._leave_trace(request.traceparent)
            self._interrupter.watch(None)
            if self._outbox.forked:
                # A child that the code forked ends with the cell.
                _leave_child(error)
            self._go_back()
            if not request.silent:
                self._tell_of_threads()
            self._settle()
            self._task = None
            self._left_running = self.fork_copy is not None and self._code_runs()
            if not request.silent and (changed := self._questions.changed()) is not None:
                self._outbox.send(changed)
            self._reply(error)
            arenas.release_free(time.monotonic() - began)
        finally:
            GATE.open()

    def _enter_trace(self, traceparent: str) -> None:
        """Let the cell's code, and programs that it starts, continue the caller's trace, as programs do."""
        with contextlib.suppress(BaseException):  # earlier code may have changed anything that is used here
            self._trace_before = os.environ.get(_TRACE)
            self._set_trace(traceparent)

    def _leave_trace(self, traceparent: str) -> None:
        """Restore the previous trace, which is not part of the session's state. The code's own changes are kept."""
        with contextlib.suppress(BaseException):
            ours = os.environ.get(_TRACE) == traceparent
            self._set_trace(self._trace_before, only_expect=not ours)

    def _set_trace(self, value: str | None, *, only_expect: bool = False) -> None:
        if self._shell.commands is not None:
            self._shell.commands.expect(_TRACE, value)
        if only_expect:
            return
        if value is None:
            del os.environ[_TRACE]
        else:
            os.environ[_TRACE] = value

    def _note_parent(self, parent: str) -> None:
        """Record the Jupyter message that requested this cell. The first one enables widget messages."""
        if self._comms is None:
            self._comms = Comms(self._outbox)
            self._comms.attach(self._shell)
        self._comms.parent = parent

    def _reply(self, error: CellError | None) -> None:
        count = max(self._shell.execution_count - 1, 0)
        if error is None:
            self._outbox.send(Reply(count))
        else:
            later = 0 if error.count is None else self._shell.display_pub.count - error.count
            self._outbox.send(Reply(count, error.ename[:1000] or "Exception", error.evalue, error.traceback, later))

    def _answer(self, question: Changes | Complete | Inspect) -> None:
        self._outbox.send(self._questions.answer(question))

    def _say_if_idle(self) -> None:
        GATE.shut += 1
        try:
            self._outbox.send(Idling(self._code_runs()))
        finally:
            GATE.open()

    def _code_runs(self) -> bool:
        """Return whether the code left anything that runs: scripts, tasks, timers or threads."""
        try:
            return end_scripts(self._shell) is not None or self._has_work() or fork_safety.threads_run_now()
        except BaseException:  # the code may have changed anything that is examined here
            return True

    def _has_work(self) -> bool:
        """Return whether the code left anything in the loop, or timers. The handler of an expired timer waits at the gate."""
        return has_work(self.loop, own=1) or fork_safety.timers_run() or GATE.waited_for

    def _park(self, request: Park) -> None:
        """Create a copy of this process, and answer; or continue as a kernel created from the copy."""
        soon = time.monotonic() - self._idle_since < _SOON
        GATE.shut += 1
        ran, self._left_running = self._left_running, False  # before the fork
        try:
            same = request.again and self._standstill is not None and self._standstill.lasts()
            refusal, pending, anew = None, True, None
            if not same:
                refusal, pending = self._prepare_copy()
            if refusal is None and not same:
                refusal, anew = self._copy(request, soon)
            if anew is not None:
                self._begin_anew(anew)
            elif refusal is not None:
                self._outbox.send(Parked(refusal, pending))
            else:
                self._outbox.send(Parked(pending=pending, same=same, ran=ran))
                if soon and not same:
                    hot_pages.copy(self._channel.readable)
                timers = fork_safety.timers_run() or GATE.waited_for
                self._standstill = Standstill(self.loop, self._channel.fileno()) if pending and not timers else None
                if pending and not self._waiting:
                    self._channel.wait()
            self._idle_since = time.monotonic()
        finally:
            GATE.open()

    def _prepare_copy(self) -> tuple[str | None, bool]:
        """Return why no copy can be created, or None, and whether the code left anything that runs between cells."""
        if self.fork_copy is None:
            return "this system cannot copy a running kernel", False
        self._outbox.settle()
        try:
            scripts = end_scripts(self._shell)
            reason = scripts or fork_safety.refusal()
            pending = self._has_work() or (not scripts and fork_safety.threads_run())
            if reason is None:
                fork_safety.prepare()
        except BaseException as error:  # the code may have changed anything that is examined here
            return f"the state of the process cannot be examined: {CellError.of(error).evalue}", True
        return reason, pending

    def _copy(self, request: Park, soon: bool) -> tuple[str | None, StartedAnew | None]:
        assert self.fork_copy is not None
        self._outbox.parking = True
        try:
            return None, self.fork_copy(request.number, soon)
        except OSError as error:
            room = "; each checkpoint is a process: drop checkpoints, or allow more processes (Resources(processes=…))"
            return f"the process cannot be forked: {error.strerror}{room if error.errno == errno.EAGAIN else ''}", None
        except Exception as error:  # the code may have changed anything that a fork uses; a copy itself raises nothing
            return f"no copy could be made: {CellError.of(error).evalue}", None
        finally:
            self._outbox.parking = False

    def _begin_anew(self, anew: StartedAnew) -> None:
        """Continue where the original was, in a kernel created from a copy, with its own channel."""
        self._outbox.parking = True  # until the host expects output: hooks may print, also while this repairs them
        self._channel.renew()
        renew(self.loop)
        self._standstill = None
        lost = fork_safety.repair(Moved(self.stay_in or "", anew.stay_in or ""))
        self._waiting.clear()
        if anew.to_inspect:
            drop_work(self.loop, self._channel.fileno())
            GATE.forget()
        self.stay_in = anew.stay_in
        with contextlib.suppress(OSError):  # the directory was removed
            self._enter_own_directory()
        lacks = tuple(sentence.encode("utf-8", "replace").decode()[:MAX_TEXT] for sentence in lost[:MAX_MIMES])
        self._channel.send(Ready(VERSION, lacks))
        self._outbox.parking = False

    def _tell_of_threads(self) -> None:
        """Report, once, that a library's threads prevent checkpoints: undo would report it too late."""
        with contextlib.suppress(Exception):  # the code may have changed anything that is examined here
            before, self._threads = self._threads, os.stat("/proc/self/task").st_nlink
            if self._threads <= before or self.fork_copy is None or self._told_of_threads:
                return
            if (sentence := fork_safety.lasting()) is not None:
                self._told_of_threads = True
                self._outbox.write("stderr", f"[cellblock] {sentence}\n")

    def _settle(self) -> None:
        """Make all output visible to the host before the cell ends."""
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            try:
                stream.flush()  # type: ignore[union-attr]  # None is caught like any object that the code put there
            except BaseException:  # the code may have closed or replaced it with anything
                continue
        _fflush(None)  # what C code left in stdio's buffers
        self._outbox.settle()

    def _go_back(self) -> None:
        try:
            if self._enter_own_directory():
                self._outbox.write("stderr", f"[cellblock] cwd reset to {self.stay_in}\n")
        except OSError as error:
            self._outbox.write("stderr", f"[cellblock] cannot return to the working directory: {error}\n")

    def _enter_own_directory(self) -> bool:
        """Enter the directory to return to, if there is one. Return whether the code was elsewhere."""
        if self.stay_in is None:
            return False
        with contextlib.suppress(OSError):  # the code removed its directory
            if os.getcwd() == self.stay_in:
                return False
        os.chdir(self.stay_in)
        self._shell.note_directory(Path(self.stay_in))
        return True


def _leave_child(error: CellError | None) -> NoReturn:
    if error is not None:
        sys.stderr.write("\n".join(error.traceback) + "\n")
    leave(0 if error is None else 1)


def leave(status: int = 0) -> NoReturn:
    """Exit as users expect of an interpreter, but without full finalization.

    Exit handlers run and open files are flushed. A full finalization would touch every page shared with the zygote.
    """
    try:
        atexit._run_exitfuncs()  # noqa: SLF001  # the rest of finalization must not run
        for thing in gc.get_objects():
            if isinstance(thing, (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)) and not thing.closed:
                try:
                    thing.flush()
                except (OSError, ValueError):
                    continue
    finally:
        os._exit(status)
