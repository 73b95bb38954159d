"""An MCP server over stdio that says what it was told, by hand: so quick that its own time does not hide anybody else's."""

from __future__ import annotations

import json
import sys
from typing import Any

_TOOL = {
    "name": "echo",
    "description": "Say the same.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the members of a response to a request."""
    match method:
        case "initialize":
            told = {"capabilities": {"tools": {}}, "serverInfo": {"name": "echo", "version": "1"}}
            return {"result": {"protocolVersion": params["protocolVersion"], **told}}
        case "tools/list":
            return {"result": {"tools": [_TOOL]}}
        case "tools/call":
            return {"result": {"content": [{"type": "text", "text": params["arguments"]["text"]}]}}
        case "ping":
            return {"result": {}}
    return {"error": {"code": -32601, "message": f"there is no method {method}"}}


def main() -> None:
    """Serve until the input ends."""
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request and "method" in request:
            said = {"jsonrpc": "2.0", "id": request["id"], **answer(request["method"], request.get("params", {}))}
            sys.stdout.write(json.dumps(said) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
