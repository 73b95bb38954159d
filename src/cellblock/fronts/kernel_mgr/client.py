"""`KernelClient`: runs code in a kernel of a Jupyter kernel gateway."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from cellblock.common.extras import require_extra
from cellblock.errors import InvalidInputError, StateError, UnsupportedError
from cellblock.fronts.jupyter.messages import APPROVAL
from cellblock.fronts.kernel_mgr import token_files
from cellblock.fronts.kernel_mgr.beginning import beginning
from cellblock.model.blocks import PICTURES
from cellblock.tools.calling.runner import ToolRunner, ToolRunnerError

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

_log = logging.getLogger("cellblock")
_MAX_MESSAGE = 256 * 1024 * 1024


class ExecutionError(Exception):
    """Executed code raised an error. The message is its traceback."""


@dataclass
class ExecutionResult:
    """The output of successful code, as returned by `KernelClient`.

    ``cellblock.ExecutionResult`` is another class: KernelBox's name for `CodeExecutionResult`.

    Attributes:
        text: The text, or None if missing.
        images: The image files.
    """

    text: str | None
    images: list[Path] = field(default_factory=list)


def _check_approvals(approve_shell_cmds: bool, require_shell_escape: bool, tool_server_port: int) -> None:
    if approve_shell_cmds and not tool_server_port:
        raise InvalidInputError(
            "approve_shell_cmds needs tool_server_port, the port of a ToolServer that has commands approved"
        )
    if require_shell_escape and not approve_shell_cmds:
        raise InvalidInputError("require_shell_escape needs approve_shell_cmds=True")


class KernelClient:
    """A client that starts a kernel in a `KernelGateway` or another Jupyter kernel gateway, and runs code in it.

    ::

        async with KernelClient(host="localhost", port=8888) as client:
            result = await client.execute("print('hello')")
            print(result.text)
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 8888,
        working_dir: str | os.PathLike[str] | None = None,
        images_dir: str | os.PathLike[str] | None = None,
        ping_interval: float = 10,
        approve_shell_cmds: bool = False,
        require_shell_escape: bool = False,
        tool_server_host: str = "localhost",
        tool_server_port: int = 0,
        kernel_init_timeout: float = 10,
        *,
        token: str = "",
        tool_server_token: str = "",
    ) -> None:
        """Configure a client without connecting it.

        Args:
            host: Host name or IP address of the gateway.
            port: The gateway's port.
            working_dir: The directory in which the kernel starts, and to which it returns after each cell that left it,
                with a note in the output. By default, the kernel stays where the code goes.
            images_dir: The directory of saved images; ``images`` in the current directory by default.
            ping_interval: Seconds between pings that keep the connection open.
            approve_shell_cmds: Whether ``!command`` and ``%%bash`` wait for approval. Requests wait at the gateway, which
                must be cellblock's, and this client forwards them to a `ToolServer`, which decides.
            require_shell_escape: Whether the kernel cannot start programs in any other way. Needs `approve_shell_cmds`, and
                a sandboxed kernel.
            tool_server_host: Host name of the `ToolServer`.
            tool_server_port: Port of the `ToolServer`.
            kernel_init_timeout: Seconds in which a new kernel must have run this client's first code.
            token: The gateway's token; by default the token of this user's own gateway on this port.
            tool_server_token: The token of the `ToolServer`, if it has one.

        Raises:
            InvalidInputError: Commands need approval, but no `ToolServer` is named; or `require_shell_escape` is set
                without `approve_shell_cmds`.
        """
        _check_approvals(approve_shell_cmds, require_shell_escape, tool_server_port)
        self.host = host
        self.port = port
        self.working_dir = None if working_dir is None else Path(working_dir).resolve()
        self.images_dir = Path(images_dir or "images")
        self.ping_interval = ping_interval
        self.approve_shell_cmds = approve_shell_cmds
        self.require_shell_escape = require_shell_escape
        self.tool_server_host = tool_server_host
        self.tool_server_port = tool_server_port
        self.kernel_init_timeout = kernel_init_timeout
        self._given_token = token
        self._tool_server_token = tool_server_token
        self._kernel_id: str | None = None
        self._session = ""
        self._ours = False
        self._socket: ClientConnection | None = None
        self._deciding: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.disconnect()

    @property
    def kernel_id(self) -> str:
        """The id of the kernel.

        Raises:
            StateError: The client is not connected. This is a `RuntimeError`.
        """
        if self._kernel_id is None:
            raise StateError("the client is not connected to a kernel: use 'async with', or await connect() first")
        return self._kernel_id

    @property
    def _gateway(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def base_http_url(self) -> str:
        """The URL of the gateway's kernels."""
        return f"{self._gateway}/api/kernels"

    @property
    def kernel_http_url(self) -> str:
        """The URL of the kernel.

        Raises:
            StateError: The client is not connected.
        """
        return f"{self.base_http_url}/{self.kernel_id}"

    @property
    def kernel_ws_url(self) -> str:
        """The URL of the kernel's channels.

        Raises:
            StateError: The client is not connected.
        """
        return f"ws{self.kernel_http_url.removeprefix('http')}/channels?session_id={self._session}"

    async def connect(self, retries: int = 10, retry_interval: float = 1.0, kernel_init_timeout: float | None = None) -> None:
        """Start a kernel and connect to it. After a failure or a cancellation, the kernel has ended.

        Args:
            retries: The maximum number of attempts.
            retry_interval: Seconds between two attempts.
            kernel_init_timeout: Seconds in which the kernel must have run this client's first code; by default, as the
                client was configured.

        Raises:
            StateError: The gateway refuses, or cannot be reached in all attempts; or the kernel cannot enter `working_dir`.
                This is a `RuntimeError`.
            TimeoutError: The kernel took too long.
            UnsupportedError: The extra client is not installed; or commands need approval, and the gateway is not
                cellblock's.
        """
        require_extra("client", "kernel clients")
        if self._socket is not None:
            raise StateError("the client is already connected to a kernel")
        try:
            await self._start(retries, retry_interval)
            await self._begin(self.kernel_init_timeout if kernel_init_timeout is None else kernel_init_timeout)
        except BaseException:  # also a cancellation: no one else owns the kernel
            ending = asyncio.ensure_future(self.disconnect())
            with suppress(Exception):  # the first error has the cause
                await asyncio.shield(ending)
            raise

    async def _start(self, retries: int, retry_interval: float) -> None:
        from websockets.exceptions import WebSocketException

        failure: Exception | None = None
        for attempt in range(max(retries, 1)):
            if attempt:
                await asyncio.sleep(retry_interval)
            try:
                if self._kernel_id is None:
                    await self._make()
                self._socket = await self._open()
            except (OSError, WebSocketException, ValueError) as error:
                failure = error
            else:
                return
        raise StateError(f"no kernel could be started at {self.host}:{self.port}: {failure}") from failure

    async def _make(self) -> None:
        """Create a kernel, and record its id even if this is cancelled meanwhile."""
        wanted: dict[str, Any] = {"name": "python"}
        if self.approve_shell_cmds:
            wanted["options"] = {
                "approve": "ask",
                "approve_shell_cmds": True,
                "require_shell_escape": self.require_shell_escape,
            }
        asking = asyncio.ensure_future(self._ask("POST", "/api/kernels", wanted))
        try:
            made = await asyncio.shield(asking)
        except asyncio.CancelledError:
            with suppress(Exception):
                self._kernel_id = str((await asking)["id"])
            raise
        self._kernel_id, self._session = str(made["id"]), uuid.uuid4().hex
        self._ours = "session_name" in made
        if self.approve_shell_cmds and not self._ours:
            raise UnsupportedError(
                f"approve_shell_cmds needs a gateway of cellblock; the one at {self.host}:{self.port} cannot ask for approval"
            )

    async def _begin(self, timeout: float) -> None:
        try:
            await self.execute(beginning(self.working_dir, plain=self._ours), timeout)
        except ExecutionError as error:
            if self.working_dir is None:
                raise
            why = str(error).partition("\n")[0]
            raise StateError(
                f"the kernel cannot work in {self.working_dir}: {why}. A sandboxed kernel sees only its gateway's directory: "
                "KernelGateway(working_dir=…)"
            ) from None

    async def _open(self) -> ClientConnection:
        from websockets.asyncio.client import connect

        return await connect(
            self.kernel_ws_url,
            additional_headers=self._headers(),
            ping_interval=self.ping_interval,
            ping_timeout=self.ping_interval * 0.9,
            max_size=_MAX_MESSAGE,
            proxy=None,
        )

    async def disconnect(self) -> None:
        """Disconnect, and end the kernel. Does nothing without a connection."""
        for task in self._deciding:
            task.cancel()
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()
        if self._kernel_id is not None:
            try:
                await self._ask("DELETE", f"/api/kernels/{self._kernel_id}")
            finally:
                self._kernel_id = None

    async def reset(self) -> None:
        """End the kernel, and start another."""
        await self.disconnect()
        await self.connect()

    async def interrupt(self) -> None:
        """Stop the running code."""
        await self._ask("POST", f"/api/kernels/{self.kernel_id}/interrupt")

    async def drain(self, timeout: float = 1.0) -> int:
        """Drop the messages that arrive within a time.

        Args:
            timeout: The time in seconds.

        Returns:
            The number of dropped messages.

        Raises:
            StateError: There is no connection to a kernel.
        """
        _ = self.kernel_id  # raises if missing
        count = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while True:
                    await self._receive()
                    count += 1
        return count

    async def interrupt_and_drain(self, drain_timeout: float = 1.0, settle_delay: float = 0.2) -> None:
        """Stop the running code, and drop its messages.

        Args:
            drain_timeout: Seconds in which messages are dropped.
            settle_delay: Seconds to wait first.

        Raises:
            StateError: The client is not connected.
        """
        await self.interrupt()
        await asyncio.sleep(settle_delay)
        await self.drain(drain_timeout)

    async def execute(self, code: str, timeout: float | None = 120) -> ExecutionResult:
        """Run code, and return its output.

        Args:
            code: The code.
            timeout: Limit in seconds; None for no limit.

        Raises:
            ExecutionError: The code raised an error.
            TimeoutError: The code took longer, and was interrupted.
            StateError: The client is not connected.
        """
        async with aclosing(self.stream(code, timeout)) as items:
            async for item in items:
                if isinstance(item, ExecutionResult):
                    return item
        raise StateError("the gateway has closed the connection")

    async def stream(self, code: str, timeout: float | None = 120) -> AsyncGenerator[str | ExecutionResult, None]:
        """Run code; yield its text as it arrives, and the result at the end.

        Args:
            code: The code.
            timeout: Limit in seconds; None for no limit.

        Yields:
            Pieces of text, and finally an `ExecutionResult` with the complete text.

        Raises:
            ExecutionError, TimeoutError, StateError: As for `execute`.
        """
        number = uuid.uuid4().hex
        header = {"msg_id": number, "msg_type": "execute_request", "session": self._session, "username": "", "version": "5.3"}
        # Else Jupyter refuses requests that wait behind one that fails, such as the call after one that timed out.
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False, "stop_on_error": False}
        shown: list[str] = []
        images: list[Path] = []
        try:
            async with asyncio.timeout(timeout):
                await self._say(
                    {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
                )
                while True:
                    message = await self._next(number)
                    said = message["content"]
                    match message["header"]["msg_type"]:
                        case "stream" if self.approve_shell_cmds and APPROVAL in message["metadata"]:
                            self._have_decided(message["metadata"][APPROVAL])
                            continue
                        case "stream":
                            text = said["text"]
                        case "display_data" | "execute_result":
                            text = said["data"].get("text/plain", "")
                            if (mime := next((mime for mime in PICTURES if mime in said["data"]), None)) is not None:
                                images.append(await asyncio.to_thread(self._save, said["data"][mime], PICTURES[mime]))
                        case "execute_reply" if said["status"] == "ok":
                            break
                        case "execute_reply":
                            raise ExecutionError(_error(said))
                        case _:
                            continue
                    if text:
                        shown.append(text)
                        yield text
        except TimeoutError:
            await self.interrupt()
            raise
        yield ExecutionResult("".join(shown).strip() if shown else None, images)

    async def _say(self, message: dict[str, Any]) -> None:
        from websockets.exceptions import ConnectionClosed

        _ = self.kernel_id  # raises if missing
        assert self._socket is not None
        try:
            await self._socket.send(json.dumps(message))
        except ConnectionClosed as error:
            raise StateError(f"the connection to the gateway is lost: {error}") from error

    async def _next(self, number: str) -> dict[str, Any]:
        """Return the next message about one request."""
        while True:
            data = await self._receive()
            if isinstance(data, bytes):
                continue  # has buffers: a message for a widget
            message: dict[str, Any] = json.loads(data)
            if message["parent_header"].get("msg_id") == number:
                return message

    async def _receive(self) -> str | bytes:
        from websockets.exceptions import ConnectionClosed

        if self._socket is None:
            raise StateError("the client was disconnected")
        try:
            return await self._socket.recv()
        except ConnectionClosed as error:
            raise StateError(f"the connection to the gateway is lost: {error}") from error

    def _have_decided(self, asked: dict[str, Any]) -> None:
        """Forward the kernel's request to the tool server, and return its decision to the gateway."""
        task = asyncio.create_task(self._decide(asked))
        self._deciding.add(task)
        task.add_done_callback(self._deciding.discard)

    async def _decide(self, asked: dict[str, Any]) -> None:
        server = ToolRunner(
            asked["server"], host=self.tool_server_host, port=self.tool_server_port, token=self._tool_server_token or None
        )
        try:
            await server.approve(asked["tool"], asked["arguments"])
        except ToolRunnerError as error:  # also if the tool server cannot be reached
            _log.info("%s: %s", asked["text"], error)
            allowed = False
        else:
            allowed = True
        try:
            await self._ask("POST", "/approvals", {"ids": [asked["id"]], "allow": allowed})
        except (OSError, StateError) as error:  # this task is not awaited; the gateway refuses undecided requests
            _log.warning("%s: the gateway was not told the decision: %s", asked["text"], error)

    def _save(self, image: str, extension: str) -> Path:
        self.images_dir.mkdir(parents=True, exist_ok=True)
        path = self.images_dir / f"{uuid.uuid4().hex[:8]}.{extension}"
        path.write_bytes(base64.b64decode(image))
        return path

    def _headers(self) -> dict[str, str]:
        token = self._given_token or token_files.find(self.port)
        return {"Authorization": f"token {token}"} if token else {}

    async def _ask(self, method: str, path: str, body: Any = None) -> Any:
        return await asyncio.to_thread(_send, method, self._gateway + path, body, self._headers())


def _send(method: str, url: str, body: Any, headers: dict[str, str]) -> Any:
    """Send a request, and return the JSON answer.

    Raises:
        StateError: The answer is an error.
        OSError: No answer was received.
    """
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **headers}
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310  # it begins with http
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as answer:
            said = answer.read()
    except urllib.error.HTTPError as error:
        with error:
            why = error.read().decode("utf-8", "replace")
        raise StateError(f"{method} {url} was answered with {error.code}: {_detail(why)}") from None
    return json.loads(said) if said else None


def _detail(text: str) -> str:
    """Return the message in a gateway's error document."""
    try:
        said = json.loads(text)
        return str(said.get("detail") or said.get("message") or text)
    except (ValueError, AttributeError):
        return text[:1000]


def _error(said: dict[str, Any]) -> str:
    trace = "\n".join(said.get("traceback", []))
    return f"{said.get('ename', 'an unknown error')}: {said.get('evalue', '')}\n{trace}"
