"""`KernelClient`: runs code in a kernel of a Jupyter kernel gateway."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from cellblock.errors import StateError
from cellblock.kernel_mgr import token_files

_MAX_MESSAGE = 256 * 1024 * 1024


class ExecutionError(Exception):
    """Code that was executed in a kernel raised an error. The message has its traceback."""


@dataclass
class ExecutionResult:
    """What code has shown that ran to its end.

    Attributes:
        text: Its text, or None if there is none.
        images: The files with its images.
    """

    text: str | None
    images: list[Path] = field(default_factory=list)


class KernelClient:
    """Starts a kernel in a `KernelGateway`, or another gateway of Jupyter's kind, and runs code in it.

    ::

        async with KernelClient(host="localhost", port=8888) as client:
            result = await client.execute("print('hello')")
            print(result.text)
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 8888,
        images_dir: Path | None = None,
        ping_interval: float = 10,
        *,
        token: str = "",
    ) -> None:
        """Configure a client. It connects to nothing yet.

        Args:
            host: Host name or IP address of the gateway.
            port: The gateway's port.
            images_dir: Where images are saved; ``images`` in the current directory by default.
            ping_interval: Seconds between signs of life that keep the connection open.
            token: The gateway's token; by default that of this user's own gateway at this port.
        """
        self.host = host
        self.port = port
        self.images_dir = images_dir or Path("images")
        self.ping_interval = ping_interval
        self._given_token = token
        self._kernel_id: str | None = None
        self._session = ""
        self._socket: ClientConnection | None = None

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
            StateError: There is no connection to one. This is a `RuntimeError`.
        """
        if self._kernel_id is None:
            raise StateError("the client is not connected to a kernel: use 'async with', or await connect() first")
        return self._kernel_id

    async def connect(self, retries: int = 10, retry_interval: float = 1.0) -> None:
        """Start a kernel and connect to it.

        Args:
            retries: How often to try.
            retry_interval: Seconds between two tries.

        Raises:
            StateError: The gateway refuses, or cannot be reached, however often it is tried. This is a `RuntimeError`.
        """
        if self._socket is not None:
            raise StateError("the client is already connected to a kernel")
        failure: Exception | None = None
        for attempt in range(max(retries, 1)):
            if attempt:
                await asyncio.sleep(retry_interval)
            try:
                if self._kernel_id is None:
                    made = await self._ask("POST", "", {"name": "python"})
                    self._kernel_id, self._session = str(made["id"]), uuid.uuid4().hex
                self._socket = await self._open()
            except (OSError, WebSocketException, ValueError) as error:
                failure = error
            else:
                return
        raise StateError(f"no kernel could be started at {self.host}:{self.port}: {failure}") from failure

    async def _open(self) -> ClientConnection:
        return await connect(
            f"ws://{self.host}:{self.port}/api/kernels/{self.kernel_id}/channels?session_id={self._session}",
            additional_headers=self._headers(),
            ping_interval=self.ping_interval,
            ping_timeout=self.ping_interval * 0.9,
            max_size=_MAX_MESSAGE,
            proxy=None,
        )

    async def disconnect(self) -> None:
        """Disconnect, and end the kernel."""
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()
        if self._kernel_id is not None:
            try:
                await self._ask("DELETE", f"/{self._kernel_id}")
            finally:
                self._kernel_id = None

    async def reset(self) -> None:
        """End the kernel, and start another."""
        await self.disconnect()
        await self.connect()

    async def interrupt(self) -> None:
        """Stop what runs in the kernel."""
        await self._ask("POST", f"/{self.kernel_id}/interrupt")

    async def execute(self, code: str, timeout: float | None = 120) -> ExecutionResult:
        """Run code, and return what it has shown.

        Args:
            code: The code.
            timeout: Seconds that it may take; None for no limit.

        Raises:
            ExecutionError: The code raised an error.
            TimeoutError: It took longer, and has been interrupted.
            StateError: There is no connection to a kernel.
        """
        async with aclosing(self.stream(code, timeout)) as items:
            async for item in items:
                if isinstance(item, ExecutionResult):
                    return item
        raise StateError("the gateway has closed the connection")

    async def stream(self, code: str, timeout: float | None = 120) -> AsyncGenerator[str | ExecutionResult, None]:
        """Run code, and yield its text as it comes, and the result at its end.

        Args:
            code: The code.
            timeout: Seconds that it may take; None for no limit.

        Yields:
            Pieces of text, and last an `ExecutionResult`, which has all of it.

        Raises:
            ExecutionError, TimeoutError, StateError: As for `execute`.
        """
        number = uuid.uuid4().hex
        header = {"msg_id": number, "msg_type": "execute_request", "session": self._session, "username": "", "version": "5.3"}
        content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False}
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
                        case "stream":
                            text = said["text"]
                        case "display_data" | "execute_result":
                            text = said["data"].get("text/plain", "")
                            if "image/png" in said["data"]:
                                images.append(await asyncio.to_thread(self._save, said["data"]["image/png"]))
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
        _ = self.kernel_id  # which says so if there is none
        assert self._socket is not None
        try:
            await self._socket.send(json.dumps(message))
        except ConnectionClosed as error:
            raise StateError(f"the connection to the gateway is lost: {error}") from error

    async def _next(self, number: str) -> dict[str, Any]:
        """Return the next message about one request."""
        while True:
            if self._socket is None:
                raise StateError("the client was disconnected")
            try:
                data = await self._socket.recv()
            except ConnectionClosed as error:
                raise StateError(f"the connection to the gateway is lost: {error}") from error
            if isinstance(data, bytes):
                continue  # it has buffers: a message for a widget
            message: dict[str, Any] = json.loads(data)
            if message["parent_header"].get("msg_id") == number:
                return message

    def _save(self, image: str) -> Path:
        self.images_dir.mkdir(parents=True, exist_ok=True)
        path = self.images_dir / f"{uuid.uuid4().hex[:8]}.png"
        path.write_bytes(base64.b64decode(image))
        return path

    def _headers(self) -> dict[str, str]:
        token = self._given_token or token_files.find(self.port)
        return {"Authorization": f"token {token}"} if token else {}

    async def _ask(self, method: str, path: str, body: Any = None) -> Any:
        return await asyncio.to_thread(self._ask_now, method, path, body)

    def _ask_now(self, method: str, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **self._headers()}
        url = f"http://{self.host}:{self.port}/api/kernels{path}"
        request = urllib.request.Request(url, data, headers, method=method)  # http, as it says
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=60) as answer:
                said = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                why = error.read().decode("utf-8", "replace")
            raise StateError(f"the gateway at {self.host}:{self.port} says {error.code}: {_detail(why)}") from None
        return json.loads(said) if said else None


def _detail(text: str) -> str:
    """Return what a gateway says is wrong, of the document that it sends."""
    try:
        said = json.loads(text)
        return str(said.get("detail") or said.get("message") or text)
    except (ValueError, AttributeError):
        return text[:1000]


def _error(said: dict[str, Any]) -> str:
    trace = "\n".join(said.get("traceback", []))
    return f"{said.get('ename', 'an unknown error')}: {said.get('evalue', '')}\n{trace}"
