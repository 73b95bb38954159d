"""`Client`: a gateway's client for plain synchronous Python."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar

import httpx2

from cellblock.errors import NotFoundError
from cellblock.fronts.client import calls
from cellblock.fronts.client.calls import Call
from cellblock.fronts.client.states import States
from cellblock.fronts.client.transport import (
    EVENTS,
    Attempts,
    Reconnecting,
    arriving,
    errors,
    http_client,
    opened,
    pieces,
    read_answer,
    read_error,
    result_of,
)
from cellblock.model import CodeExecutionResult, Completions, HistoryEntry
from cellblock.model.sessions import ExecutionEvent, ExecutionRecord, Language, PendingApproval, Permission, SessionRecord

if TYPE_CHECKING:
    from cellblock.host.files import FileInfo

T = TypeVar("T")


class Client(States):
    """A client of a gateway, with the names of `cellblock`'s own functions. Threads may share it.

    It raises the same errors; a server that cannot be reached is a `DaemonError`, a token that is refused an `AccessError`.
    """

    def __init__(self, url: str = "http://127.0.0.1:8080", token: str = "", *, verify: ssl.SSLContext | bool = True) -> None:
        """Connect to nothing yet.

        Args:
            url: Where the gateway listens.
            token: A token that `cellblock tokens create` has made; empty if the gateway asks for none.
            verify: How the certificate of an ``https`` server is checked.

        Raises:
            InvalidInputError: The URL is not valid.
        """
        self._http = http_client(httpx2.Client, url, token, verify)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections. Executions go on."""
        self._http.close()

    # -- sessions ------------------------------------------------------------------------------------------------------

    def get_or_create(self, name: str, *, tags: Mapping[str, str] | None = None, **options: Any) -> SessionRecord:
        """Return the session of this name, which is made if there is none.

        Args:
            name: Its name.
            tags: Labels, if it is made.
            options: Its options, if it is made; they need a token with the scope admin.

        Raises:
            InvalidInputError: The name or an option is wrong.
            AccessError: The token may not make it.
            LaunchError: Its kernel could not be started.
        """
        return self._send(calls.get_or_create(name, tags, options))

    def create(self, name: str = "", *, tags: Mapping[str, str] | None = None, **options: Any) -> SessionRecord:
        """Make a session, as `get_or_create`. Without a name, it gets one that nobody else has.

        Raises:
            ConflictError: There is one of this name.
        """
        return self._send(calls.create(name, tags, options))

    def list_kernels(self, *, refresh: bool = False) -> list[SessionRecord]:
        """Return the sessions, oldest first; with `refresh`, look first whether their kernels are alive."""
        return self._send(calls.list_kernels(refresh=refresh))

    def status(self, kernel: SessionRecord | str) -> SessionRecord:
        """Return how a session is now.

        Raises:
            NotFoundError: There is no such session.
        """
        return self._send(calls.status(kernel))

    def restart(self, kernel: SessionRecord | str) -> SessionRecord:
        """Give a session a fresh kernel, without variables."""
        return self._send(calls.restart(kernel))

    def interrupt(self, kernel: SessionRecord | str) -> bool:
        """Stop what runs in a session; return whether something did."""
        return self._send(calls.interrupt(kernel))

    def destroy(self, name: SessionRecord | str) -> bool:
        """End a session; return whether there was one."""
        try:
            return self._send(calls.destroy(name))
        except NotFoundError:
            return False

    def wipe(self) -> list[str]:
        """End all sessions; return their ids."""
        return self._send(calls.wipe())

    # -- executions ----------------------------------------------------------------------------------------------------

    def execute(
        self, kernel: SessionRecord | str, code: str, *, language: Language = "python", timeout: float | None = None
    ) -> CodeExecutionResult:
        """Run code in a session and return its result, whatever its outcome.

        Args:
            kernel: The session, its name or its id.
            code: Python as IPython takes it, or a script for bash.
            language: ``python`` or ``bash``.
            timeout: Seconds that it may run; None for what the server's settings say.

        Raises:
            NotFoundError: There is no such session.
            OutcomeUnknownError: The connection or the daemon was lost meanwhile, and nobody can say how far the code ran.
        """
        return self._send(calls.execute(kernel, code, language=language, timeout=timeout))

    def execute_with_retry(
        self,
        kernel: SessionRecord | str,
        code: str,
        on_error_fn: Callable[[CodeExecutionResult, int], str | None],
        *,
        max_attempts: int = 5,
        language: Language = "python",
        timeout: float | None = None,
    ) -> CodeExecutionResult:
        """Run code, and have it repaired and run again if it fails, as `cellblock.execute_with_retry`."""
        attempts = Attempts(code, max_attempts)
        while True:
            result = self.execute(kernel, attempts.code, language=language, timeout=timeout)
            if (ended := attempts.add(result)) is not None:
                return ended
            attempts.repair(on_error_fn(result, attempts.number))

    def submit(
        self,
        kernel: SessionRecord | str,
        code: str,
        *,
        language: Language = "python",
        timeout: float | None = None,
        key: str = "",
        stdin: bool = False,
    ) -> ExecutionRecord:
        """Have code run, whether or not this program stays.

        Args:
            kernel: The session, its name or its id.
            code: The code.
            language: ``python`` or ``bash``.
            timeout: Seconds that it may run.
            key: An idempotency key: what was submitted with it before does not run again, and is returned.
            stdin: Whether `input()` waits for `answer`.
        """
        call = calls.submit(kernel, code, language=language, timeout=timeout, key=key, stdin=stdin)
        return self._send(call)

    def follow(self, execution: ExecutionRecord | str, after: int = 0) -> Iterator[ExecutionEvent]:
        """Yield the events of an execution as they happen, until the last. If the connection is lost, it is made again.

        Args:
            execution: The execution, or its id.
            after: The number of the last event that is known already.

        Yields:
            The events after that.
        """
        again = Reconnecting(after)
        while not again.ended:
            try:
                with self._http.stream("GET", calls.events(execution), params=again.query, timeout=EVENTS) as response:
                    if response.status_code != 200:
                        response.read()
                        raise read_error(response)
                    lines = calls.EventLines()
                    for line in response.iter_lines():
                        if (found := lines.take(line)) is not None and (event := again.event(*found)) is not None:
                            yield event
            except httpx2.TransportError as error:
                time.sleep(again.pause(error))  # a gateway that restarts is back in a moment

    def wait(self, execution: ExecutionRecord | str) -> CodeExecutionResult:
        """Wait for the end of an execution, and return its result.

        Raises:
            OutcomeUnknownError: Nobody can say how far it ran.
            CellblockError: It could not be run.
        """
        last: ExecutionEvent | None = None
        for event in self.follow(execution):
            last = event
        return result_of(last)

    def lookup(self, execution: ExecutionRecord | str) -> ExecutionRecord:
        """Return how far an execution is."""
        return self._send(calls.lookup(execution))

    def executions(self, kernel: SessionRecord | str, count: int = 100) -> list[ExecutionRecord]:
        """Return the last executions of a session, newest first."""
        return self._send(calls.executions(kernel, count))

    def cancel(self, execution: ExecutionRecord | str) -> bool:
        """Stop an execution, or keep one that waits from running; return whether it had not ended."""
        return self._send(calls.cancel(execution))

    def answer(self, execution: ExecutionRecord | str, line: str) -> bool:
        """Answer `input()`; return whether it had asked."""
        return self._send(calls.answer(execution, line))

    # -- questions -----------------------------------------------------------------------------------------------------

    def complete(self, kernel: SessionRecord | str, code: str, cursor: int | None = None) -> Completions:
        """Return what could complete the code at a cursor, by default at its end."""
        return self._send(calls.complete(kernel, code, cursor))

    def inspect(self, kernel: SessionRecord | str, code: str, cursor: int | None = None, *, detail: int = 0) -> str | None:
        """Describe the name at a cursor; None if nothing is known of it."""
        return self._send(calls.inspect(kernel, code, cursor, detail))

    def history(self, kernel: SessionRecord | str, count: int = 1000) -> list[HistoryEntry]:
        """Return the cells that a session ran, oldest first."""
        return self._send(calls.history(kernel, count))

    def install(self, kernel: SessionRecord | str, *requirements: str, timeout: float | None = None) -> CodeExecutionResult:
        """Install packages for a session; return what pip said."""
        return self._send(calls.install(kernel, requirements, timeout))

    def search_tools(self, kernel: SessionRecord | str, words: str = "", limit: int = 20) -> list[str]:
        """Return the signatures of tools that words are about."""
        return self._send(calls.search_tools(kernel, words, limit))

    # -- approvals -----------------------------------------------------------------------------------------------------

    def pending(self, kernel: SessionRecord | str | None = None) -> list[PendingApproval]:
        """Return what waits for a decision, oldest first; in one session, or in all."""
        return self._send(calls.pending(kernel))

    def decide(self, *ids: str, allow: bool, always: str = "", answer: Mapping[str, Any] | None = None) -> list[str]:
        """Decide about what waits, and answer what MCP servers ask.

        Args:
            ids: The ids of `pending`.
            allow: Whether it may be done.
            always: ``tool`` or ``call``: allow the same from now on.
            answer: What is filled in, by field, if these are questions (kind ``question``).

        Returns:
            Which of them still waited.
        """
        return self._send(calls.decide(ids, allow=allow, always=always, answer=answer))

    def allowed(self, kernel: SessionRecord | str | None = None) -> list[Permission]:
        """Return what was allowed for the rest of a session, oldest first; in one session, or in all."""
        return self._send(calls.allowed(kernel))

    def revoke(self, *ids: str) -> list[str]:
        """Revoke what was allowed, by the ids of `allowed`; return which of them there were."""
        return self._send(calls.revoke(ids))

    # -- files ---------------------------------------------------------------------------------------------------------

    def list_files(self, kernel: SessionRecord | str, path: str = ".", *, recursive: bool = False) -> list[FileInfo]:
        """List a folder of a session's workspace."""
        return self._send(calls.list_files(kernel, path, recursive=recursive))

    def remove_file(self, kernel: SessionRecord | str, path: str, *, recursive: bool = False) -> bool:
        """Remove a file, or a folder with all that is in it if `recursive` says so."""
        return self._send(calls.remove_file(kernel, path, recursive=recursive))

    def read_file(self, kernel: SessionRecord | str, path: str) -> bytes:
        """Return the content of a file."""
        with errors():
            response = self._http.get(calls.file(kernel, path))
        if response.status_code != 200:
            raise read_error(response)
        return bytes(response.content)

    def write_file(self, kernel: SessionRecord | str, path: str, data: bytes | str | Iterable[bytes]) -> FileInfo:
        """Write a file, whole or not at all. Text is written as UTF-8. Large data can come in pieces."""
        content = data.encode() if isinstance(data, str) else data
        return calls.file_info(self._upload("PUT", calls.file(kernel, path), content))

    def download(self, kernel: SessionRecord | str, path: str, local: str | os.PathLike[str]) -> None:
        """Copy a file of a session to this machine's disk. It appears when it is complete."""
        self._receive("GET", calls.file(kernel, path), local)

    def upload(self, kernel: SessionRecord | str, local: str | os.PathLike[str], path: str = "") -> FileInfo:
        """Copy a file of this machine's disk to a session, by default under its name."""
        with opened(local) as file:
            return self.write_file(kernel, path or os.path.basename(local), pieces(file))

    def _upload(self, method: str, path: str, content: bytes | Iterable[bytes], query: Mapping[str, str] | None = None) -> Any:
        """Send bytes, and return the JSON that is answered."""
        with errors():
            response = self._http.request(method, path, content=content, params=query)
        return read_answer(response)

    def _receive(self, method: str, path: str, local: str | os.PathLike[str], query: Mapping[str, str] | None = None) -> None:
        """Write what the gateway sends to a file."""
        with errors(), self._http.stream(method, path, params=query) as response:
            if response.status_code != 200:
                response.read()
                raise read_error(response)
            with arriving(local) as file:
                for piece in response.iter_bytes():
                    file.write(piece)

    def _send(self, call: Call[T]) -> T:
        with errors(once=call.once):
            response = self._http.request(call.method, call.path, json=call.body, params=call.query)
        return call.read(read_answer(response))
