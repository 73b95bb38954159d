"""Runs cells in another Jupyter kernel, a process in this session.

The other kernel has the session's sandbox and limits, and ends with it. The session's own kernel is its client. It forwards
code, and shows the other's output as its own, so that everything else (results, streams, timeouts, files) works as for Python.
It needs jupyter_client in the session's interpreter.
"""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NoReturn

from IPython.core.completer import Completion
from IPython.core.getipython import get_ipython
from IPython.display import clear_output, publish_display_data

from cellblock.worker import comms

_START, _ASK, _STOP = 60.0, 2.0, 1.5
"""Seconds that a kernel may take to start, to answer a question, and to stop when it is interrupted."""

_QUESTIONS = {"about": "kernel_info_request", "is_complete": "is_complete_request", "inspect": "inspect_request"}
_POLL = 100
"""Milliseconds between two checks whether the kernel is still alive."""


class OtherKernelError(RuntimeError):
    """The other kernel could not be started, or ended."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class _Value:
    """A return value of the other kernel, to be returned by this one."""

    def __init__(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        self._bundle = data, metadata

    def _repr_mimebundle_(self, **_: object) -> tuple[dict[str, Any], dict[str, Any]]:
        return self._bundle


class OtherKernel:
    """A kernel of another language, with its connection."""

    def __init__(self, name: str) -> None:
        """Start the kernel.

        Args:
            name: The name of its kernelspec.

        Raises:
            OtherKernelError: The kernelspec does not exist, or the kernel does not start.
        """
        self.name = name
        spec = _spec(name)
        from jupyter_client.connect import write_connection_file
        from jupyter_client.session import Session

        directory = tempfile.mkdtemp(prefix="kernel-")
        path, config = write_connection_file(
            os.path.join(directory, "connection.json"), ip=os.path.join(directory, "s"), transport="ipc", kernel_name=name
        )
        self._by_message = spec.interrupt_mode == "message"
        self._said = os.path.join(directory, "stderr")
        self._process = self._started(spec, path)
        self._session: Any = Session(key=config["key"] if isinstance(config["key"], bytes) else config["key"].encode())
        self._connect(config)
        self._wait_until_ready()

    def _started(self, spec: Any, path: str) -> subprocess.Popen[bytes]:
        argv = [part.replace("{connection_file}", path).replace("{resource_dir}", spec.resource_dir) for part in spec.argv]
        try:
            with open(self._said, "wb") as said:
                return subprocess.Popen(
                    [sys.executable if argv[0] == "python" else argv[0], *argv[1:]],
                    env={**os.environ, **spec.env},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=said,
                    start_new_session=True,
                )
        except OSError as error:
            raise OtherKernelError(f"the kernel {self.name!r} cannot be started: {error}") from None

    def _connect(self, config: Any) -> None:
        zmq: Any = import_module("zmq")
        context = zmq.Context.instance()
        self._sockets: dict[str, Any] = {}
        self._poller: Any = zmq.Poller()
        for channel in ("shell", "iopub", "stdin", "control"):
            socket = self._sockets[channel] = context.socket(zmq.SUB if channel == "iopub" else zmq.DEALER)
            socket.linger = 0
            if channel == "iopub":
                socket.subscribe(b"")
            else:
                socket.identity = self._session.bsession  # this connects `input()` with its cell
            socket.connect(f"ipc://{config['ip']}-{config[f'{channel}_port']}")
            self._poller.register(socket, zmq.POLLIN)

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process.poll() is None

    def _wait_until_ready(self) -> None:
        """Wait until it answers, and until its output arrives, slightly later."""
        deadline = time.monotonic() + _START
        while time.monotonic() < deadline:
            asked = self._send("shell", "kernel_info_request", {})
            shown = answered = False
            for channel, _ in self._messages(asked, _POLL / 1000):
                shown = shown or channel == "iopub"
                answered = answered or channel == "shell"
                if shown and answered:
                    return
        self._fail("does not answer")

    def _fail(self, what: str) -> NoReturn:
        self._process.kill()
        status = self._process.wait()
        with open(self._said, "rb") as said:
            words = said.read()[-2000:].decode("utf-8", "replace").strip()
        raise OtherKernelError(f"the kernel {self.name!r} {what} (exit status {status})" + (f":\n{words}" if words else ""))

    def _send(self, channel: str, kind: str, content: dict[str, Any]) -> str:
        message = self._session.send(self._sockets[channel], kind, content)
        assert message is not None
        return str(message["header"]["msg_id"])

    def _messages(self, about: str, seconds: float | None) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the replies to a message, with their channels, until the time is over."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while deadline is None or time.monotonic() < deadline:
            if not self.alive:
                self._fail("ended. Its variables are lost, and the next cell starts a fresh one")
            ready = dict(self._poller.poll(_POLL))
            for channel, socket in self._sockets.items():
                if socket in ready:
                    _, message = self._session.recv(socket, mode=0)
                    if message is not None and message["parent_header"].get("msg_id") == about:
                        yield channel, message

    # -- cells ---------------------------------------------------------------------------------------------------------

    def execute(self, code: str) -> object:
        """Run code, show its output, and return its value."""
        asked = self._send("shell", "execute_request", {"code": code, "silent": False, "allow_stdin": True})
        try:
            return self._show(asked, None)
        except KeyboardInterrupt:
            self.interrupt()
            self._show(asked, _STOP)
            raise

    def interrupt(self) -> None:
        """Ask it to stop the running cell."""
        if self._by_message:
            self._send("control", "interrupt_request", {})
        else:
            os.killpg(self._process.pid, signal.SIGINT)

    def _show(self, asked: str, seconds: float | None) -> object:
        """Show a cell's output until it has ended, and return its value."""
        value: _Value | None = None
        idle = replied = False
        for channel, message in self._messages(asked, seconds):
            kind, content = message["header"]["msg_type"], message["content"]
            replied = replied or channel == "shell"
            idle = idle or (kind == "status" and content["execution_state"] == "idle")
            if kind == "execute_result":
                value = _Value(content["data"], content["metadata"])
            elif kind == "error" and seconds is None:
                self._rest(asked)
                _raise(content)
            elif channel == "stdin":
                self._answer(content)
            elif channel == "iopub":
                _pass_on(kind, content)
            if idle and replied:
                break
        return value

    def _rest(self, asked: str) -> None:
        """Wait for the end of a cell that failed."""
        for _, message in self._messages(asked, _ASK):
            if message["content"].get("execution_state") == "idle":
                return

    def _answer(self, content: dict[str, Any]) -> None:
        ask = getpass.getpass if content.get("password") else input
        self._send("stdin", "input_reply", {"value": ask(content.get("prompt", ""))})

    # -- questions -----------------------------------------------------------------------------------------------------

    def _ask(self, kind: str, content: dict[str, Any]) -> dict[str, Any]:
        asked = self._send("shell", kind, content)
        for channel, message in self._messages(asked, _ASK):
            if channel == "shell":
                answer: dict[str, Any] = message["content"]
                return answer
        return {}

    def completions(self, code: str, cursor: int) -> Iterator[Completion]:
        """Yield completions of some code at a cursor, like IPython's completer."""
        answer = self._ask("complete_request", {"code": code, "cursor_pos": cursor})
        for text in answer.get("matches", ()):
            yield Completion(answer["cursor_start"], answer["cursor_end"], text)

    def answer(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Answer a question of a Jupyter client; an empty dict if this kernel cannot.

        Args:
            name: The question (`worker.comms.answer`).
            arguments: The content of the request.
        """
        kind = _QUESTIONS.get(name)
        return {} if kind is None else self._ask(kind, arguments)


def _spec(name: str) -> Any:
    try:
        from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
    except ImportError:
        raise OtherKernelError(
            f"the kernel {name!r} needs jupyter_client in the session's interpreter: "
            f"{sys.executable} -m pip install jupyter_client"
        ) from None
    known = KernelSpecManager(ensure_native_kernel=False)
    try:
        return known.get_kernel_spec(name)
    except NoSuchKernel:
        there = ", ".join(sorted({*known.find_kernel_specs()} | {"python3"}))
        raise OtherKernelError(
            f"the session can read no kernelspec {name!r}. It can read: {there}. Install its kernel into "
            f"{sys.prefix}, or name its directory in JUPYTER_PATH (kernel_env) and let the sandbox read it"
        ) from None


def _pass_on(kind: str, content: dict[str, Any]) -> None:
    if kind == "stream":
        (sys.stderr if content["name"] == "stderr" else sys.stdout).write(content["text"])
    elif kind in ("display_data", "update_display_data"):
        publish_display_data(
            content["data"], content["metadata"], transient=content.get("transient", {}), update=kind.startswith("update")
        )
    elif kind == "clear_output":
        clear_output(wait=content.get("wait", False))


def _raise(content: dict[str, Any]) -> NoReturn:
    """Raise an exception of the other kernel, with its name and traceback."""
    lines = [str(line) for line in content.get("traceback", ())]
    name = str(content.get("ename") or "Error")
    shown = {"_render_traceback_": lambda _: lines or [f"{name}: {content.get('evalue', '')}"]}
    raise type(name, (Exception,), shown)(content.get("evalue", ""))


_kernel: OtherKernel | None = None


def run(name: str, code: str) -> object:
    """Run code in a kernel, starting it if necessary, and return its value.

    Args:
        name: The name of its kernelspec.
        code: The code.
    """
    try:
        return _run(name, code)
    except KeyboardInterrupt as error:
        # The frames of this process's wait are useless to the code's author.
        vars(error)["_render_traceback_"] = lambda: ["KeyboardInterrupt: "]
        raise


def _run(name: str, code: str) -> object:
    global _kernel
    if _kernel is None or not _kernel.alive:
        _kernel = None
        _kernel = OtherKernel(name)
        shell: Any = get_ipython()
        shell.Completer.completions = _kernel.completions
        comms.other = _kernel.answer
    return _kernel.execute(code) if code else None
