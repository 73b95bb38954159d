"""The worker: takes messages, runs cells, and answers. Everything it does is asked for by the host."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import gc
import io
import os
import socket
import sys
from collections import deque

from IPython.core.completer import provisionalcompleter, rectify_completions
from IPython.utils.tokenutil import token_at_cursor

from cellblock.wire.frames import VERSION
from cellblock.wire.messages import (
    PIECE,
    Complete,
    Completed,
    Execute,
    InputReply,
    Inspect,
    Inspected,
    Message,
    Ready,
    Reply,
    Shutdown,
)
from cellblock.worker.ask import Asker
from cellblock.worker.channel import Channel
from cellblock.worker.loop import Interrupter, new_loop
from cellblock.worker.shell import CellError, Shell
from cellblock.worker.streams import Outbox

_MAX_MATCHES = 1000
_fflush = ctypes.CDLL(None).fflush


class Worker:
    """One kernel's end of one channel."""

    def __init__(self, shell: Shell, outbox: Outbox, sock: socket.socket, stay_in: str | None = None) -> None:
        """Attach a shell to a channel.

        Args:
            shell: Made by `shell.create`, before the fork.
            outbox: The one the shell was made with.
            sock: The worker's end of the channel.
            stay_in: A directory to come back to after each cell, or None to stay where the code went.
        """
        self._shell = shell
        self._outbox = outbox
        self._channel = Channel(sock)
        self._stay_in = stay_in
        self._waiting: deque[Message] = deque()
        self._task: asyncio.Task[None] | None = None
        self._open = True
        self.loop = new_loop()
        self._interrupter = Interrupter(self.loop)
        self._asker = Asker(self._channel, outbox, self._waiting.append)

    def run(self) -> None:
        """Serve the channel until the host says `Shutdown` or closes it."""
        self._outbox.attach(self._channel)
        self._interrupter.install()
        self._asker.install()
        self.loop.add_reader(self._channel.fileno(), self._on_readable)
        self._outbox.send(Ready(VERSION))
        while self._open:
            try:
                self.loop.run_forever()
            except (KeyboardInterrupt, SystemExit):
                # asyncio lets these two through the loop. The task they hit has ended with them; the others go on.
                continue
        self._outbox.settle()

    def close(self) -> None:
        """Undo `run` and the constructor, where the process goes on: after warming up."""
        self._outbox.detach()
        self.loop.remove_reader(self._channel.fileno())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        asyncio.set_event_loop(None)
        self._channel.close()

    def _on_readable(self) -> None:
        messages = self._channel.receive()
        if messages is None:
            self._stop()
            return
        self._waiting.extend(messages)
        self._next()

    def _stop(self) -> None:
        self._open = False
        self.loop.stop()

    def _next(self) -> None:
        while self._waiting and self._task is None:
            match self._waiting.popleft():
                case Execute() as request:
                    self._task = self.loop.create_task(self._execute(request))
                    self._interrupter.watch(self._task)
                    self._task.add_done_callback(self._on_done)
                case Complete(code=code, cursor=cursor):
                    self._outbox.send(self._complete(code, cursor))
                case Inspect(code=code, cursor=cursor, detail=detail):
                    self._outbox.send(Inspected(self._inspect(code, cursor, detail)))
                case InputReply():
                    pass  # the question was withdrawn by an interrupt
                case Shutdown():
                    self._stop()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled():
            task.exception()
        self._next()

    async def _execute(self, request: Execute) -> None:
        self._asker.allowed = request.stdin
        try:
            error = await self._shell.run(request.code)
        except (KeyboardInterrupt, asyncio.CancelledError):
            # The interrupt hit IPython itself, just before or after the code.
            error = CellError("KeyboardInterrupt", "", ("KeyboardInterrupt: ",))
        except Exception as failure:
            # Code can break the shell it runs in; that ends its own cell only.
            error = CellError(type(failure).__name__, str(failure), ())
        if error is not None and error.ename == "CancelledError" and self._interrupter.hits:
            error = CellError("KeyboardInterrupt", "", (*error.traceback[:-1], "KeyboardInterrupt: "))
        self._interrupter.watch(None)
        self._go_back()
        self._settle()
        count = max(self._shell.execution_count - 1, 0)
        if error is None:
            self._outbox.send(Reply(count))
        else:
            self._outbox.send(Reply(count, error.ename[:1000] or "Exception", error.evalue, error.traceback))

    def _settle(self) -> None:
        """Make everything that was written visible to the host before the cell ends."""
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            try:
                stream.flush()  # type: ignore[union-attr]  # None is caught like whatever else the code put there
            except Exception:  # the code may have closed or replaced it with anything
                continue
        _fflush(None)  # what C code left in stdio's buffers
        self._outbox.settle()

    def _go_back(self) -> None:
        if self._stay_in is None:
            return
        try:
            if os.getcwd() == self._stay_in:
                return
        except OSError:
            pass  # the code removed the directory it was in
        try:
            os.chdir(self._stay_in)
            self._outbox.write("stderr", f"[cellblock] back in the working directory {self._stay_in}\n")
        except OSError as error:
            self._outbox.write("stderr", f"[cellblock] cannot go back to the working directory: {error}\n")

    def _complete(self, code: str, cursor: int) -> Completed:
        cursor = min(cursor, len(code))
        try:
            with provisionalcompleter(), self._interrupter.query():
                found = list(rectify_completions(code, self._shell.Completer.completions(code, cursor)))
        except (Exception, KeyboardInterrupt):
            found = []  # completing runs the objects' own __dir__ and __getattr__
        matches = tuple(dict.fromkeys(item.text[:1000] for item in found[:_MAX_MATCHES]))
        if not matches:
            return Completed((), cursor, cursor)
        return Completed(matches, max(found[0].start, 0), max(found[0].end, 0))

    def _inspect(self, code: str, cursor: int, detail: int) -> str | None:
        try:
            with self._interrupter.query():
                name = token_at_cursor(code, min(cursor, len(code)))
                bundle = self._shell.object_inspect_mime(name, detail_level=detail)
        except (Exception, KeyboardInterrupt):
            return None  # nothing of that name, or an object that cannot be looked at
        text = bundle.get("text/plain")
        return text[: PIECE // 4] if isinstance(text, str) else None


def leave() -> None:
    """End the process the way users expect of an interpreter, without taking it apart piece by piece.

    Exit handlers run and open files are written out. A full finalization would touch every page shared with the zygote.
    """
    try:
        atexit._run_exitfuncs()  # noqa: SLF001  # the rest of finalization is what must not happen
        for thing in gc.get_objects():
            if isinstance(thing, (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)) and not thing.closed:
                try:
                    thing.flush()
                except (OSError, ValueError):
                    continue
    finally:
        os._exit(0)
