"""`Client`: a gateway's client for plain synchronous Python."""

# Made from async_client.py by tests/unasync.py: do not edit it.

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Self

from cellblock.common.extras import require_extra
from cellblock.common.urls import is_url
from cellblock.errors import BusyError, DaemonError
from cellblock.fronts.client import calls
from cellblock.fronts.client.calls import Call
from cellblock.fronts.client.transport import (
    EVENTS,
    Reconnecting,
    Watching,
    arriving,
    errors,
    http_client,
    opened,
    pieces,
    read_answer,
    read_error,
)
from cellblock.model import CodeExecutionResult
from cellblock.model.attempts import Attempts
from cellblock.model.files import FileInfo
from cellblock.model.saving import LoadReport
from cellblock.model.sessions import (
    ExecutionEvent,
    ExecutionRecord,
    Language,
    SessionRecord,
    outcome_of,
)
from cellblock.operations.base import Request
from cellblock.operations.base_client import BaseClient
from cellblock.operations.data import execution_of, session_of
from cellblock.operations.environments import CreateEnvironment, ListEnvironments, RemoveEnvironment, ShowEnvironment
from cellblock.operations.saving import Load, Save

if TYPE_CHECKING:
    from cellblock.common.environments import Environment
    from cellblock.model.environments import EnvironmentRecord
    from cellblock.model.overview import Change
    from cellblock.model.saving import SaveReport


class Client(BaseClient):
    """A client of a gateway, with the names of `cellblock`'s own functions. Threads may share it.

    It raises the same errors. An unreachable server raises `DaemonError`, a refused token `AccessError`.
    """

    def __init__(self, url: str = "http://127.0.0.1:8080", token: str = "", *, verify: ssl.SSLContext | bool = True) -> None:
        """Configure a client. It connects on first use.

        Args:
            url: The gateway's URL.
            token: A token from `cellblock tokens create`; empty if the gateway needs none.
            verify: How to verify the certificate of an ``https`` server.

        Raises:
            InvalidInputError: The URL is invalid.
        """
        require_extra("client", "HTTP clients")
        import httpx2

        self._http = http_client(httpx2.Client, url, token, verify)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. Executions continue."""
        self._http.close()

    # -- sessions ------------------------------------------------------------------------------------------------------

    def get_or_create(self, name: str, *, tags: Mapping[str, str] | None = None, **options: Any) -> SessionRecord:
        """Return the session with this name, and create it if it does not exist.

        Args:
            name: The session's name.
            tags: Labels of a new session.
            options: Options of the session, which an existing session must have; they need a token with the scope admin.

        Raises:
            InvalidInputError: The name or an option is invalid, or the existing session has another option.
            AccessError: The token does not permit creating the session.
            LaunchError: The session's kernel could not be started.
        """
        body = {"tags": dict(tags or {}), "options": calls.options(options)}
        return SessionRecord.from_dict(self._send(Call("POST", calls.session(name), body)))

    def create(self, name: str = "", *, tags: Mapping[str, str] | None = None, **options: Any) -> SessionRecord:
        """Create a session, as `get_or_create` does. Without a name, it gets a unique one.

        Raises:
            ConflictError: A session with this name exists.
        """
        body = {"name": name or None, "tags": dict(tags or {}), "options": calls.options(options)}
        return SessionRecord.from_dict(self._send(Call("POST", "/kernels", body)))

    # -- environments --------------------------------------------------------------------------------------------------

    def create_environment(
        self, name: str, environment: Environment | None = None, *, upgrade: bool = False
    ) -> EnvironmentRecord:
        """Create an environment, for ``environment="NAME"`` of new sessions. It needs a token with the scope admin.

        Args:
            name: Its name.
            environment: Its packages. Its files are read here. None: the packages that it was made from, for `upgrade`.
            upgrade: Whether an existing environment is replaced, by the newest versions. Its sessions keep their packages.

        Raises:
            ConflictError: The name exists with other packages.
            InvalidInputError: The packages cannot be installed.
        """
        data = {} if environment is None else environment.read("empty").for_daemon()
        return self._ask(CreateEnvironment(name, data, upgrade))

    def environments(self) -> list[EnvironmentRecord]:
        """Return the environments with names, without their locks."""
        return self._ask(ListEnvironments())

    def environment(self, name: str) -> EnvironmentRecord:
        """Return an environment with its lock.

        Raises:
            NotFoundError: The environment does not exist.
        """
        return self._ask(ShowEnvironment(name))

    def remove_environment(self, name: str) -> str:
        """Remove an environment; return its lock, for ``Environment(lock=FILE)``. Its sessions continue."""
        return self._ask(RemoveEnvironment(name))

    # -- executions ----------------------------------------------------------------------------------------------------

    def execute(
        self, kernel: SessionRecord | str, code: str, *, language: Language = "python", timeout: float | None = None
    ) -> CodeExecutionResult:
        """Run code in a session and return its result, whether or not it succeeded.

        Args:
            kernel: The session's record, name or id.
            code: IPython code, or a bash script.
            language: ``python`` or ``bash``.
            timeout: Limit in seconds; None for the server's default.

        Raises:
            NotFoundError: The session does not exist.
            OutcomeUnknownError: The connection or the daemon was lost, and how far the code ran is unknown.
        """
        call = Call("POST", calls.session(kernel, "execute", "kernels"), calls.code(code, language, timeout), once=True)
        return CodeExecutionResult.from_dict(self._send(call))

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
        """Run code; after a failure, repair it and run it again, as `cellblock.execute_with_retry` does."""
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
        """Submit code. It runs even if this program ends.

        Args:
            kernel: The session's record, name or id.
            code: The code.
            language: ``python`` or ``bash``.
            timeout: Limit in seconds.
            key: An idempotency key. If it was used before, return the earlier execution instead of running the code again.
            stdin: Whether `input()` waits for `answer`.
        """
        body = {**calls.code(code, language, timeout), "key": key, "stdin": stdin}
        call = Call("POST", calls.session(kernel, "executions"), body, once=True)
        return ExecutionRecord.from_dict(self._send(call))

    def follow(self, execution: ExecutionRecord | str, after: int = 0) -> Generator[ExecutionEvent, None, None]:
        """Yield the events of an execution as they happen, until the last. Reconnect if the connection is lost.

        Args:
            execution: The execution, or its id.
            after: The number of the last known event.

        Yields:
            The events after that.
        """
        import httpx2

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
                time.sleep(again.pause(error))

    def wait(self, execution: ExecutionRecord | str) -> CodeExecutionResult:
        """Wait for the end of an execution, and return its result.

        Raises:
            OutcomeUnknownError: How far it ran is unknown.
            CellblockError: It could not be run.
        """
        last: ExecutionEvent | None = None
        with closing(self.follow(execution)) as events:
            for event in events:
                last = event
        return outcome_of(last, execution_of(execution))

    def watch(self, after: str = "") -> Generator[Change, None, None]:
        """Yield changes of all sessions that the token permits, without an end.

        If the connection is lost, the client reconnects, and no change is missed. If the daemon was replaced, or the
        position is too old, `Change.fresh` says that earlier changes are obsolete.

        Args:
            after: The position of the last known change; if empty, the first change has the full state.

        Yields:
            The changes after that: activity of sessions, pending decisions, refusals, and figures.
        """
        import httpx2

        again = Watching(after)
        while True:
            try:
                with self._http.stream("GET", "/events", params=again.query, timeout=EVENTS) as response:
                    if response.status_code != 200:
                        response.read()
                        raise read_error(response)
                    lines = calls.EventLines()
                    for line in response.iter_lines():
                        again.heard()
                        if (found := lines.take(line)) is not None:
                            yield again.change(*found)
                again.left()
            except (httpx2.TransportError, DaemonError, BusyError) as error:
                time.sleep(again.pause(error))

    # -- pages, packages and tools -------------------------------------------------------------------------------------

    def open_port(self, kernel: SessionRecord | str, port: int, *, bare: bool = False) -> str:
        """Return a URL at which a browser on the gateway's machine shows the page of a server, once, within two minutes.

        Args:
            kernel: The session.
            port: The server's port.
            bare: Whether to show the page without a frame, so that it can load from other servers and navigate.
        """
        path = f"{calls.session(session_of(kernel))}/ports/{port}"
        return str((self._send(Call("POST", path, {"bare": bare})))["url"])

    def install(self, kernel: SessionRecord | str, *requirements: str, timeout: float | None = None) -> CodeExecutionResult:
        """Install packages for a session; return the result with pip's output."""
        body = {"requirements": list(requirements), "timeout": timeout}
        call = Call("POST", calls.session(kernel, "install"), body, once=True)
        return CodeExecutionResult.from_dict(self._send(call))

    def search_tools(self, kernel: SessionRecord | str, words: str = "", limit: int = 20) -> list[str]:
        """Return the signatures of tools that match words."""
        call = Call("GET", calls.session(kernel, "tools"), query={"query": words, "limit": str(limit)})
        answer = self._send(call)
        return list(answer["tools"])

    # -- files ---------------------------------------------------------------------------------------------------------

    def read_file(self, kernel: SessionRecord | str, path: str) -> bytes:
        """Return the content of a file."""
        with errors():
            response = self._http.get(calls.file(kernel, path))
        if response.status_code != 200:
            raise read_error(response)
        return bytes(response.content)

    def write_file(self, kernel: SessionRecord | str, path: str, data: bytes | str | Iterable[bytes]) -> FileInfo:
        """Write a file atomically. Text is encoded as UTF-8. Large data can be passed in pieces."""
        content = data.encode() if isinstance(data, str) else data
        return FileInfo.from_dict(self._upload("PUT", calls.file(kernel, path), content))

    def download(self, kernel: SessionRecord | str, path: str, local: str | os.PathLike[str]) -> None:
        """Copy a file of a session to the local disk. The local file appears when it is complete."""
        self._receive("GET", calls.file(kernel, path), local)

    def upload(self, kernel: SessionRecord | str, local: str | os.PathLike[str], path: str = "") -> FileInfo:
        """Copy a local file to a session, by default under its name."""
        with opened(local) as file:
            return self.write_file(kernel, path or os.path.basename(local), pieces(file))

    # -- files of a whole session --------------------------------------------------------------------------------------

    def save(self, kernel: SessionRecord | str, local: str | os.PathLike[str], *, workspace: bool = False) -> SaveReport:
        """Save a session to the local disk; return the saved items, and the items that could not be saved.

        If `local` is a URL, such as ``s3://bucket/file``, the gateway's machine writes there. This needs the scope
        ``admin``.
        """
        if isinstance(local, str) and is_url(local):
            return self._ask(Save(session_of(kernel), local, workspace))
        from cellblock.host.saved_file import report

        self._receive("POST", calls.session(kernel, "save"), local, calls.files(workspace))
        return report(local)

    def load(self, kernel: SessionRecord | str, local: str | os.PathLike[str], *, workspace: bool = False) -> LoadReport:
        """Load a saved session into a session, which gets a fresh kernel. `local` is as for `save`."""
        if isinstance(local, str) and is_url(local):
            return self._ask(Load(session_of(kernel), local, workspace))
        with opened(local) as file:
            answer = self._upload("POST", calls.session(kernel, "load"), pieces(file), calls.files(workspace))
        return LoadReport.from_dict(answer)

    def export(self, kernel: SessionRecord | str, local: str | os.PathLike[str]) -> None:
        """Write the cells of a session to the local disk: ``.ipynb`` for a notebook, ``.py`` for a script."""
        self._receive("GET", calls.session(kernel, "export"), local, calls.format_of(local))

    # -- requests -------------------------------------------------------------------------------------------------------

    def _upload(self, method: str, path: str, content: bytes | Iterable[bytes], query: Mapping[str, str] | None = None) -> Any:
        """Send bytes, and return the JSON answer."""
        with errors():
            response = self._http.request(method, path, content=content, params=query)
        return read_answer(response)

    def _receive(self, method: str, path: str, local: str | os.PathLike[str], query: Mapping[str, str] | None = None) -> None:
        """Write a downloaded body to a file."""
        with errors(), self._http.stream(method, path, params=query) as response:
            if response.status_code != 200:
                response.read()
                raise read_error(response)
            with arriving(local) as file:
                for piece in response.iter_bytes():
                    file.write(piece)

    def _send(self, call: Call) -> Any:
        """Send a call, and return the JSON answer."""
        with errors(once=call.once):
            response = self._http.request(call.method, call.path, json=call.body, params=call.query)
        return read_answer(response)

    def _call(self, request: Request[Any], body: bytes = b"") -> Any:
        return calls.answer(request, self._send(calls.of(request, body)))
