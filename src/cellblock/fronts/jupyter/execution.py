"""Runs cells for Jupyter clients, and broadcasts their output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from cellblock.common import telemetry
from cellblock.common.turns import turns
from cellblock.errors import InvalidInputError
from cellblock.fronts.jupyter.kernel import JupyterKernel, Waiting
from cellblock.fronts.jupyter.large_json import check
from cellblock.fronts.jupyter.messages import APPROVAL, shown
from cellblock.model.checkpoints import undo_note
from cellblock.model.untrusted import large_json, parse_json
from cellblock.operations.executions import Submit
from cellblock.wire.messages import VALUE_MIME

MODULE = "__import__('cellblock.worker.comms', fromlist=['answer'])"
"""The call of the session's side, as an expression."""

_PATIENCE = 10_000
"""Milliseconds that an answer may take: evaluating an expression runs code of the session."""

_VIEW = "application/vnd.jupyter.widget-view+json"


async def execute(kernel: JupyterKernel, request: Waiting) -> None:
    """Run a cell.

    Raises:
        CellblockError: The request failed within cellblock.
    """
    content = request.message.content
    if request.aborted:
        kernel.reply(request, "execute_reply", {"status": "aborted", "execution_count": 0, "payload": []})
        return
    silent = bool(content.get("silent", False))
    outcome = await run(
        kernel,
        request,
        str(content.get("code", "")),
        echo=not silent,
        silent=silent or not content.get("store_history", True),
        stdin=bool(content.get("allow_stdin", False)),
        quiet=silent,
    )
    kernel.asking = None
    if outcome["status"] == "error" and content.get("stop_on_error", True):
        kernel.abort_waiting()
    expressions = content.get("user_expressions")
    found: Any = {}
    if outcome["status"] == "ok" and isinstance(expressions, dict) and expressions:
        found = await ask(kernel, "evaluate", expressions={str(name): str(text) for name, text in expressions.items()})
    kernel.reply(request, "execute_reply", {**outcome, "user_expressions": found or {}, "payload": []})


async def run(
    kernel: JupyterKernel,
    request: Waiting,
    code: str,
    *,
    echo: bool = False,
    silent: bool = True,
    stdin: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Run code for a client's message.

    Args:
        kernel: The kernel.
        request: The message.
        code: The code.
        echo: Whether to broadcast the code.
        silent: Whether it leaves no trace.
        stdin: Whether the client answers `input()`.
        quiet: Whether to show no output.

    Returns:
        The content of the reply.

    Raises:
        CellblockError: The request failed within cellblock.
    """
    submit = Submit(kernel.session, timeout=-1, live=True, stdin=stdin, silent=silent, follow=True, parent=request.message.id)
    execution = ""
    output = Output(kernel, request.message.header, quiet=quiet)
    outcome: dict[str, Any] | None = None
    # The first event triggers the request to the daemon, so it happens inside the message's trace.
    with telemetry.passing_on(request.message.metadata):
        async with aclosing(kernel.daemon.follow(submit, code.encode("utf-8", "surrogatepass"))) as events:
            async for event in events:
                data = event["data"]
                await turns().give_way()
                if event["kind"] == "display":
                    data = {**data, "data": await output.checked(data["data"])}
                match event["kind"]:
                    case "begun":
                        execution, output.count = data["execution"], data["execution_count"]
                        if echo:
                            said = {"code": code, "execution_count": output.count}
                            kernel.broadcast("execute_input", said, request.message.header)
                    case "input":
                        kernel.ask(request, execution, data["prompt"], password=data["password"])
                    case "result" | "failed":
                        outcome = output.end(data, failed=event["kind"] == "failed")
                    case kind:
                        output.show(kind, data)
    return outcome or output.end({"error": "DaemonError", "message": "the daemon ended"}, failed=True)


async def ask(kernel: JupyterKernel, name: str, **arguments: Any) -> Any:
    """Evaluate a function in the session's interpreter; return None if it does not answer.

    Args:
        kernel: The kernel.
        name: The function (`worker.comms.answer`).
        arguments: The arguments, as JSON data.

    Raises:
        CellblockError: The request failed within cellblock.
    """
    code = f"{MODULE}.answer({name!r}, {json.dumps(arguments)!r})"
    submit = Submit(kernel.session, timeout=_PATIENCE, live=True, silent=True, follow=True, own=True)
    found = None
    async with aclosing(kernel.daemon.follow(submit, code.encode())) as events:
        async for event in events:
            if event["kind"] == "display" and VALUE_MIME in event["data"]["data"]:
                found = load(event["data"]["data"][VALUE_MIME])
    return found


def load(data: bytes) -> Any:
    """Parse JSON from a session; return an empty object if it is invalid."""
    try:
        return parse_json(data, null_for_nan=True)
    except InvalidInputError:
        return {}


class Output:
    """A converter of a cell's output to messages for all clients.

    Attributes:
        count: The cell's number.
    """

    def __init__(self, kernel: JupyterKernel, parent: Mapping[str, Any], *, quiet: bool) -> None:
        """Set up.

        Args:
            kernel: The kernel whose clients get the messages.
            parent: The header of the cell's message.
            quiet: Whether to send nothing.
        """
        self.count = 0
        self._kernel = kernel
        self._parent = parent
        self._quiet = quiet

    def show(self, kind: str, data: Mapping[str, Any]) -> None:
        """Broadcast one event of an execution."""
        if kind == "comm":
            content = load(data["content"])
            self._tell(data["kind"], content.get("content", {}), metadata=content.get("metadata"), buffers=data["buffers"])
        elif self._quiet:
            return
        elif kind == "stream":
            self._tell("stream", {"name": data["name"], "text": data["text"]})
        elif kind == "clear":
            self._tell("clear_output", {"wait": data["wait"]})
        elif kind == "display":
            self._display(data)
        elif kind == "approval":
            text = f"waits for approval: {data['text']} ('cellblock approvals allow {data['id']}' allows it)"
            self._note(text, metadata={APPROVAL: dict(data)})
        elif kind == "gap":
            self._note(f"{data['dropped']} events were dropped")

    async def checked(self, bundle: Mapping[str, Any]) -> dict[str, Any]:
        """Return a MIME bundle whose large JSON was validated in another process."""
        found = dict(bundle)
        for mime in large_json(bundle):
            if (value := await check(bundle[mime])) is not None:
                found[mime] = value
            elif mime.endswith("json"):  # text of any other type may look like JSON
                del found[mime]
                self._note(f"{mime} is left out: it is not valid JSON, or takes too long to read")
        return found

    def _display(self, item: Mapping[str, Any]) -> None:
        kind, number = item["kind"], item["display_id"]
        if kind == "error":  # an error that did not end the cell
            self._tell("stream", {"name": "stderr", "text": f"{item['text'] or ''}\n"})
            return
        if kind == "update_display_data" and _VIEW in item["data"]:
            return  # a widget's text at the end of the cell, for clients without widgets
        content = {"data": shown(item["data"]), "metadata": item["metadata"]}
        if kind == "execute_result":
            self._tell(kind, {**content, "execution_count": self.count})
        else:
            self._tell(kind, {**content, "transient": {} if number is None else {"display_id": number}})

    def _note(self, text: str, **more: Any) -> None:
        self._tell("stream", {"name": "stderr", "text": f"[cellblock] {text}\n"}, **more)

    def _tell(self, kind: str, content: Mapping[str, Any], **more: Any) -> None:
        self._kernel.broadcast(kind, content, self._parent, **more)

    def end(self, data: Mapping[str, Any], *, failed: bool) -> dict[str, Any]:
        """Broadcast the outcome, and return the content of the reply."""
        if failed:
            name, text = data["error"], data["message"]
            error = {"ename": name, "evalue": text, "traceback": [f"{name}: {text}"]}
        else:
            self.count = data["execution_count"] or self.count
            if data["recovery"] in ("restarted", "restored_earlier"):
                self._kernel.about = None
                self._kernel.broadcast("status", {"execution_state": "restarting"}, {})
            if note := undo_note(data):
                self._note(note)
            if data["error"] is None:
                return {"status": "ok", "execution_count": self.count}
            error = {name: data["error"][name] for name in ("ename", "evalue", "traceback")}
        if not self._quiet:
            self._tell("error", error)
        return {"status": "error", "execution_count": self.count, **error}
