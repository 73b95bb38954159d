"""Results and events of executions in E2B's form: JSON objects, one per line."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from cellblock.errors import InvalidInputError
from cellblock.model import OutputItem, holds_json
from cellblock.model.untrusted import MAX_VALUES, large_json, parse_json

_FIELDS = {
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}
"""MIME type → the field of a result that holds its value. Values of all others are in ``extra``."""

END = {"type": "end_of_execution"}
KEEPALIVE = {"type": "keepalive"}


def messages(event: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the messages for an event of an execution.

    Args:
        event: The event (`ExecutionEvent.to_dict`).
    """
    data: Mapping[str, Any] = event["data"]
    match event["kind"]:
        case "begun":
            yield {"type": "number_of_executions", "execution_count": data["execution_count"]}
        case "stream":
            yield _output(data["name"], data["text"])
        case "display" if data["kind"] != "error":
            item = OutputItem.from_dict(data)
            large = large_json(item.data)
            yield result(item, without=large)
            for mime in large:
                yield _output("stderr", f"[cellblock] {mime} is left out: it has more than {MAX_VALUES:,} values\n")
        case "gap":
            yield _output(
                "stderr",
                f"[cellblock] {data['dropped']} outputs were dropped because they arrived faster than they were read\n",
            )
        case "result":
            yield from _ended(data)
        case "failed":
            yield error(data["error"], data["message"])


def _ended(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if (failed := data["error"]) is not None:
        yield error(failed["ename"], failed["evalue"], "\n".join(failed["traceback"]))
    elif data["status"] != "success":
        yield error("ExecutionInterrupted", f"the code was stopped: {data['status']}")


def error(name: str, value: str, traceback: str = "") -> dict[str, Any]:
    """Return the message for code that failed, or could not be run."""
    return {"type": "error", "name": name, "value": value, "traceback": traceback}


def result(item: OutputItem, without: Collection[str] = ()) -> dict[str, Any]:
    """Return the message for a displayed or returned value.

    Args:
        item: The output.
        without: MIME types that are left out.
    """
    made: dict[str, Any] = {"type": "result", "is_main_result": item.kind == "execute_result"}
    extra: dict[str, Any] = {}
    for mime, value in item.data.items():
        if mime in without:
            continue
        if mime == "text/plain":
            made["text"] = _unquoted(str(value))
        elif mime in _FIELDS:
            made[_FIELDS[mime]] = _value(mime, value)
        else:
            extra[mime] = _value(mime, value)
    if extra:
        made["extra"] = extra
    return made


def _value(mime: str, value: str | bytes) -> Any:
    """Return a value in JSON form: data unchanged, and bytes in base64."""
    if isinstance(value, bytes) or not holds_json(mime, value):
        return value
    try:
        # Not every JSON parser accepts NaN and the infinities, which Python's writes.
        return parse_json(value, null_for_nan=True)
    except InvalidInputError:
        return value


def _unquoted(text: str) -> str:
    """Return the plain text of a value; a string without its quotes, as E2B does."""
    return text[1:-1] if len(text) > 1 and text[0] in "'\"" and text[-1] == text[0] else text


def _output(name: str, text: str) -> dict[str, Any]:
    return {"type": name, "text": text, "timestamp": time.time_ns()}
