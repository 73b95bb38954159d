"""Repairs a server's list of tools before the SDK validates it, which would refuse the whole list for one tool."""

from __future__ import annotations

from typing import Any

from mcp_types import methods
from pydantic import ValidationError

from cellblock.tools.mcp.words import cut

_VERSION = "2025-11-25"
"""The strictest version of the protocol: a list that is valid there is valid in the others."""

_UNNAMED = "a tool without a name"
_MAX_TOOLS = 1000
"""Maximum tools of one list; servers can send several. Each is validated, in the loop."""
_MAX_ERRORS = 1000
"""Errors of one validation above which none is described: pydantic describes all or none, which takes 5 µs for each."""


def make_valid(result: dict[str, Any]) -> dict[str, str]:
    """Repair the tools in the result of ``tools/list``, and remove those that cannot be repaired.

    Args:
        result: The server's result, which is changed in place.

    Returns:
        The names of removed tools, each with the reason.
    """
    tools = result.get("tools")
    if not isinstance(tools, list):
        return {}
    left_out = {}
    if len(tools) > _MAX_TOOLS:
        left_out[f"{len(tools) - _MAX_TOOLS} more tools"] = f"a list has at most {_MAX_TOOLS} tools: send several lists"
        tools = result["tools"] = tools[:_MAX_TOOLS]
    if _objection(result) is None:
        return left_out
    kept = []
    for tool in tools:
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            left_out[_UNNAMED] = "it cannot be called"
            continue
        mended = _mended(tool)
        if (reason := _objection({"tools": [mended]})) is None:
            kept.append(mended)
        else:
            left_out[tool["name"]] = reason
    result["tools"] = kept
    return left_out


def _mended(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool with the type ``object`` in schemas that have no type."""
    mended = dict(tool)
    arguments = mended.get("inputSchema")
    if isinstance(arguments, dict) and "type" not in arguments:
        mended["inputSchema"] = {**arguments, "type": "object"}
    returned = mended.get("outputSchema")
    if isinstance(returned, dict):
        if "properties" in returned and "type" not in returned:
            mended["outputSchema"] = {**returned, "type": "object"}
        elif returned.get("type") != "object":
            del mended["outputSchema"]  # it does not describe an object, and structured results are objects
    return mended


def _objection(result: dict[str, Any]) -> str | None:
    """Return the error in a list of tools; None if it is valid."""
    try:
        methods.validate_server_result("tools/list", _VERSION, result)
    except ValidationError as error:
        if error.error_count() > _MAX_ERRORS:
            return f"{error.error_count()} values in it are wrong"
        wrong = error.errors()[0]
        place = ".".join(map(str, [part for part in wrong["loc"] if part not in ("tools", 0)]))
        return cut(f"{place}: {wrong['msg']}" if place else f"{wrong['msg']}")
    return None
