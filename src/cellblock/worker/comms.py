"""Messages between widgets and Jupyter clients, and requests of such clients other than cells.

`Comms` replaces ipykernel's implementation of the package ``comm``. The host's Jupyter interface calls the functions below in
silent cells. All data here is for the session's own clients, so code that interferes with it can deceive only them.
"""

from __future__ import annotations

import base64
import json
import platform
from collections.abc import Callable
from typing import Any

import IPython
from IPython.core.getipython import get_ipython

from cellblock.errors import ProtocolError
from cellblock.wire.messages import VALUE_MIME, Comm
from cellblock.worker.outbox import Outbox


class Comms:
    """Sends widget messages while a Jupyter client's cell runs.

    Attributes:
        parent: The id of the Jupyter message that requested the running cell; empty without a Jupyter client.
    """

    def __init__(self, outbox: Outbox) -> None:
        self.parent = ""
        self._outbox = outbox

    def attach(self, shell: Any) -> None:
        """Make all comms of this kernel, including existing ones, send through this object."""
        shell.parent_message = lambda: self.parent  # output widgets look there for the message that their output belongs to
        try:
            from comm import DummyComm
        except ImportError:
            return  # then there are no widgets either

        def publish_msg(
            comm: Any, msg_type: str, data: Any = None, metadata: Any = None, buffers: Any = None, **keys: Any
        ) -> None:
            if self.parent:
                content = {"data": {} if data is None else data, "comm_id": comm.comm_id, **keys}
                self._send(msg_type, content, metadata, buffers)

        DummyComm.publish_msg = publish_msg  # type: ignore[method-assign, assignment]  # of looser types

    def _send(self, kind: Any, content: dict[str, Any], metadata: Any, buffers: Any) -> None:
        raw = json.dumps({"content": content, "metadata": metadata or {}}, default=_to_json).encode()
        try:
            self._outbox.send(Comm(kind, raw, tuple(bytes(buffer) for buffer in buffers or ())))
        except ProtocolError as error:
            self._outbox.write("stderr", f"[cellblock] a widget's message cannot be sent: {error}\n")


other: Callable[[str, dict[str, Any]], Any] | None = None
"""Answers questions in a session of another language (`worker.other_kernel`)."""


def answer(name: str, arguments: str) -> None:
    """Answer a question of a Jupyter client.

    Args:
        name: The question.
        arguments: Its arguments, as JSON.
    """
    shell: Any = get_ipython()
    asked = json.loads(arguments)
    found = _QUESTIONS[name](shell, **asked) if other is None else other(name, asked)
    shell.display_pub.publish({VALUE_MIME: json.dumps(found, default=_to_json).encode()})


def take(kind: str, message: str, buffers: list[bytes]) -> None:
    """Deliver a client's message to its comm.

    Args:
        kind: ``comm_open``, ``comm_msg`` or ``comm_close``.
        message: The message, as JSON.
        buffers: Its buffers.
    """
    from comm import get_comm_manager

    read = json.loads(message)
    read["buffers"] = [memoryview(buffer) for buffer in buffers]
    getattr(get_comm_manager(), kind)(None, None, read)


def _about(_shell: Any) -> dict[str, Any]:
    return {"python": platform.python_version(), "ipython": IPython.__version__}


def _is_complete(shell: Any, code: str) -> dict[str, Any]:
    status, indent = shell.input_transformer_manager.check_complete(code)
    return {"status": status, "indent": " " * indent} if status == "incomplete" else {"status": status}


def _evaluate(shell: Any, expressions: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = shell.user_expressions(expressions)
    for value in found.values():
        data = value.get("data", {})
        data.update({mime: base64.b64encode(item).decode() for mime, item in data.items() if isinstance(item, bytes)})
    return found


def _comm_info(_shell: Any, target_name: str | None) -> dict[str, Any]:
    try:
        from comm import get_comm_manager
    except ImportError:
        return {}
    comms = get_comm_manager().comms
    return {
        number: {"target_name": comm.target_name}
        for number, comm in comms.items()
        if target_name is None or comm.target_name == target_name
    }


_QUESTIONS: dict[str, Callable[..., Any]] = {
    "about": _about,
    "is_complete": _is_complete,
    "evaluate": _evaluate,
    "comm_info": _comm_info,
}


def _to_json(value: object) -> Any:
    """Convert a value of a widget for JSON: mostly dates and NumPy numbers."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "item"):
        return value.item()
    return str(value)
