"""Handlers of Jupyter requests other than cells: completion, inspection, history, widgets."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping
from typing import Any

from cellblock.common.version import __version__
from cellblock.fronts.jupyter.execution import MODULE, ask, run
from cellblock.fronts.jupyter.kernel import JupyterKernel, Waiting
from cellblock.fronts.jupyter.messages import VERSION
from cellblock.model.sessions import OWN_KERNEL
from cellblock.operations.sessions import Complete, History, Inspect

_MOST_HISTORY = 1000
_MAX_ABOUT = 64 * 1024
"""Characters of a kernel's description of itself."""


async def answer(kernel: JupyterKernel, request: Waiting) -> None:
    """Answer a request.

    Raises:
        CellblockError: The request failed within cellblock.
    """
    await _ANSWERS[request.message.type](kernel, request, request.message.content)


async def _kernel_info(kernel: JupyterKernel, request: Waiting, _: Any) -> None:
    if kernel.about is None:
        found = await ask(kernel, "about")
        kernel.about = found if isinstance(found, dict) and len(json.dumps(found)) <= _MAX_ABOUT else {}
    info = {
        "protocol_version": VERSION,
        "implementation": "cellblock",
        "implementation_version": __version__,
        "help_links": [],
        "debugger": False,
        "supported_features": [],
        **(_python(kernel, kernel.about) if kernel.kernel_type == OWN_KERNEL else _other_language(kernel, kernel.about)),
    }
    if not kernel.about:
        kernel.about = None  # it may answer next time
    kernel.reply(request, "kernel_info_reply", {"status": "ok", **info})


def _python(kernel: JupyterKernel, about: Mapping[str, Any]) -> dict[str, Any]:
    python, ipython = (str(about.get(name, "?")) for name in ("python", "ipython"))
    language = {
        "name": "python",
        "version": python,
        "mimetype": "text/x-python",
        "file_extension": ".py",
        "pygments_lexer": "ipython3",
        "codemirror_mode": {"name": "ipython", "version": 3},
        "nbconvert_exporter": "python",
    }
    return {
        "language_info": language,
        "banner": f"Python {python}, IPython {ipython}, in the cellblock session {kernel.name!r}",
    }


def _other_language(kernel: JupyterKernel, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a kernel of another language. It is untrusted: the session's code may have written it."""
    language = about.get("language_info")
    known = isinstance(language, dict) and isinstance(language.get("name"), str)
    return {
        "language_info": language if known else {"name": kernel.kernel_type, "version": "?", "mimetype": "text/plain"},
        "banner": str(about.get("banner") or kernel.kernel_type),
    }


async def _complete(kernel: JupyterKernel, request: Waiting, content: Any) -> None:
    code, cursor = _place(content)
    found = await kernel.daemon.call(Complete(kernel.session, cursor), code)
    said = {"matches": found["matches"], "cursor_start": found["start"], "cursor_end": found["end"], "metadata": {}}
    kernel.reply(request, "complete_reply", {"status": "ok", **said})


async def _inspect(kernel: JupyterKernel, request: Waiting, content: Any) -> None:
    code, cursor = _place(content)
    detail = 1 if content.get("detail_level") == 1 else 0
    if kernel.kernel_type != OWN_KERNEL:
        found = await ask(kernel, "inspect", code=code.decode(), cursor_pos=cursor, detail_level=detail)
        nothing = {"status": "ok", "found": False, "data": {}, "metadata": {}}
        kernel.reply(request, "inspect_reply", found if isinstance(found, dict) and found else nothing)
        return
    text = await kernel.daemon.call(Inspect(kernel.session, cursor, detail), code)
    data = {} if text is None else {"text/plain": text}
    kernel.reply(request, "inspect_reply", {"status": "ok", "found": text is not None, "data": data, "metadata": {}})


async def _is_complete(kernel: JupyterKernel, request: Waiting, content: Any) -> None:
    found = await ask(kernel, "is_complete", code=str(content.get("code", "")))
    kernel.reply(request, "is_complete_reply", found if isinstance(found, dict) and found else {"status": "unknown"})


async def _history(kernel: JupyterKernel, request: Waiting, content: Any) -> None:
    cells = await kernel.daemon.call(History(kernel.session, _MOST_HISTORY))
    lines = [(number, cell["code"]) for number, cell in enumerate(cells, 1)]
    found = select(lines, content)
    outputs = bool(content.get("output", False))
    history = [[0, number, [code, None] if outputs else code] for number, code in found]
    kernel.reply(request, "history_reply", {"status": "ok", "history": history})


def select(lines: list[tuple[int, str]], content: Any) -> list[tuple[int, str]]:
    """Return the requested lines of a history."""
    kind = content.get("hist_access_type", "tail")
    if kind == "range":
        start, stop = (_integer(content.get(name), 0) for name in ("start", "stop"))
        return [line for line in lines if line[0] >= start and (not stop or line[0] < stop)]
    if kind == "search":
        pattern = str(content.get("pattern", "*"))
        lines = [line for line in lines if fnmatch.fnmatchcase(line[1], pattern)]
        if content.get("unique", False):
            lines = list({line[1]: line for line in lines}.values())
    count = _integer(content.get("n"), _MOST_HISTORY)
    return lines[-count:] if count > 0 else []


async def _comm_info(kernel: JupyterKernel, request: Waiting, content: Any) -> None:
    target = content.get("target_name")
    found = await ask(kernel, "comm_info", target_name=None if target is None else str(target))
    kernel.reply(request, "comm_info_reply", {"status": "ok", "comms": found if isinstance(found, dict) else {}})


async def _pass_to_comm(kernel: JupyterKernel, request: Waiting, content: Any) -> None:
    if kernel.kernel_type != OWN_KERNEL:
        return  # only Python has widgets
    message = json.dumps({"content": content, "metadata": request.message.metadata, "header": request.message.header})
    buffers = [bytes(buffer) for buffer in request.message.buffers]
    await run(kernel, request, f"{MODULE}.take({request.message.type!r}, {message!r}, {buffers!r})")


async def _connect(kernel: JupyterKernel, request: Waiting, _: Any) -> None:
    kernel.reply(request, "connect_reply", {"status": "ok"})


def _place(content: Any) -> tuple[bytes, int]:
    code = str(content.get("code", ""))
    cursor = _integer(content.get("cursor_pos"), len(code))
    return code.encode("utf-8", "replace"), min(max(cursor, 0), len(code))


def _integer(value: object, default: int) -> int:
    return value if type(value) is int else default


_ANSWERS = {
    "kernel_info_request": _kernel_info,
    "complete_request": _complete,
    "inspect_request": _inspect,
    "is_complete_request": _is_complete,
    "history_request": _history,
    "comm_info_request": _comm_info,
    "comm_open": _pass_to_comm,
    "comm_msg": _pass_to_comm,
    "comm_close": _pass_to_comm,
    "connect_request": _connect,
}
KINDS = frozenset(_ANSWERS)
"""The types of the messages that this module answers."""
