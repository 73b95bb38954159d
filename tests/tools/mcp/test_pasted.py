"""Configurations as other MCP clients write them."""

from __future__ import annotations

from typing import Any

import pytest

from cellblock import InvalidInputError
from cellblock.tools.mcp.params import parse_params
from cellblock.tools.mcp.pasted import converted

NPX = {"command": "npx", "args": ["-y", "x"]}
KEY = NPX | {"env": {"KEY": "${KEY}"}}
URL = {"url": "https://h/mcp"}
BEARER = URL | {"headers": {"Authorization": "Bearer ${KEY}"}}
OAUTH = URL | {"auth": {"client_id": "${ID}", "scopes": ["b"]}}
TWO = URL | {"headers": {"A": "b", "C": "${D}"}}
SSE = {"type": "sse", "url": "https://h/sse"}

ACCEPTED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("Claude Desktop", {"mcpServers": {"x": KEY}}, KEY),
    ("Claude Code", {"type": "stdio", **KEY}, KEY),
    ("Claude Code, default", NPX | {"env": {"KEY": "${KEY:-none}"}}, NPX | {"env": {"KEY": "${KEY:-none}"}}),
    ("Claude Code, HTTP", {"type": "http", **BEARER, "oauth": {"clientId": "a"}}, BEARER),
    ("Claude Code, SSE", SSE, SSE),
    ("Cursor", NPX | {"env": {"KEY": "${env:KEY}"}}, KEY),
    ("Cursor, folder", {"command": "${workspaceFolder}/x", "args": ["${userHome}"]}, {"command": "./x", "args": ["${HOME}"]}),
    ("Cursor, URL", URL | {"headers": {"Authorization": "Bearer ${env:KEY}"}}, BEARER),
    ("Cursor, OAuth", URL | {"auth": {"CLIENT_ID": "${env:ID}", "scopes": ["b"]}}, OAUTH),
    ("VS Code", {"servers": {"x": {"type": "stdio", **NPX, "dev": {"watch": "*"}}}}, NPX),
    ("VS Code, HTTP", {"type": "http", **URL}, URL),
    ("VS Code, folder", NPX | {"args": ["-y", "x", "--root=${workspaceFolder}"]}, NPX | {"args": ["-y", "x", "--root=."]}),
    ("Codex", NPX | {"env_vars": ["KEY"], "startup_timeout_sec": 9, "tool_timeout_sec": 6}, KEY | {"startup_timeout_sec": 9}),
    ("Codex, HTTP", URL | {"bearer_token_env_var": "KEY", "enabled": True, "enabled_tools": ["a"]}, BEARER),
    ("Codex, headers", URL | {"http_headers": {"A": "b"}, "env_http_headers": {"C": "D"}}, TWO),
    ("Codex, milliseconds", {"mcp_servers": {"x": NPX | {"startup_timeout_ms": 500}}}, NPX | {"startup_timeout_sec": 0.5}),
    ("opencode", {"type": "local", "command": ["npx", "-y", "x"], "environment": {"KEY": "{env:KEY}"}}, KEY),
    ("opencode, URL", {"type": "remote", **URL, "headers": {"Authorization": "Bearer {env:KEY}"}}, BEARER),
    ("Gemini CLI", NPX | {"env": {"KEY": "$KEY"}, "timeout": 600000, "trust": True, "includeTools": ["a"]}, KEY),
    ("Gemini CLI, HTTP", {"httpUrl": "https://h/mcp", "headers": {"Authorization": "Bearer $KEY"}}, BEARER),
    ("Gemini CLI, SSE", {"url": "https://h/sse", "authProviderType": "google_credentials"}, SSE),
    ("Cline", NPX | {"disabled": False, "autoApprove": ["a"], "alwaysAllow": [], "timeout": 60}, NPX),
    ("Cline, HTTP", {"type": "streamableHttp", **URL}, URL),
    ("Roo Code", {"type": "streamable-http", **URL, "disabledTools": ["a"]}, URL),
    ("Windsurf", {"serverUrl": "https://h/mcp"}, URL),
    ("Zed", {"context_servers": {"x": {"source": "custom", **NPX}}}, NPX),
    ("Zed, before", {"command": {"path": "npx", "args": ["-y", "x"], "env": {"KEY": "${KEY}"}}, "settings": {}}, KEY),
    ("Goose", {"type": "stdio", "cmd": "npx", "args": ["-y", "x"], "envs": {"KEY": "${KEY}"}, "timeout": 300}, KEY),
    ("Copilot CLI", {"type": "local", **NPX, "tools": ["*"]}, NPX),
    ("one line", {"command": "npx -y x"}, NPX),
]  # fmt: skip

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("VS Code, input", {"inputs": [{"id": "key"}], "servers": {"x": NPX | {"env": {"KEY": "${input:key}"}}}}, "asks a person"),
    ("VS Code, file", NPX | {"envFile": "${workspaceFolder}/.env"}, r"put its variables into \.env"),
    ("VS Code, command", NPX | {"env": {"KEY": "${command:x.key}"}}, "is a variable of an editor"),
    ("an inner folder", NPX | {"args": ["a:${workspaceFolder}"]}, "is a variable of an editor"),
    ("Claude Code, program", URL | {"headersHelper": "/bin/x"}, "names a program, which is not run"),
    ("opencode, file", NPX | {"env": {"KEY": "{file:~/key}"}}, "which is not read"),
    ("Cline, off", NPX | {"disabled": True}, "remove it to use the server"),
    ("Codex, off", NPX | {"enabled": False}, "remove it to use the server"),
    ("several servers", {"mcpServers": {"a": NPX, "b": URL}}, "register them one by one"),
    ("a misspelling", {"command": "npx", "argss": []}, "did you mean 'args'"),
]


@pytest.mark.parametrize(("given", "ours"), [pytest.param(*each, id=name) for name, *each in ACCEPTED])
def test_forms_of_other_clients_are_accepted(given: dict[str, Any], ours: dict[str, Any]) -> None:
    assert parse_params("x", given) == parse_params("x", ours)
    assert converted("x", ours) == (ours, ())


@pytest.mark.parametrize(("given", "why"), [pytest.param(*each, id=name) for name, *each in REFUSED])
def test_what_cannot_be_done_is_refused_with_the_reason(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        parse_params("x", given)


def test_what_has_no_meaning_is_named() -> None:
    given = NPX | {"autoApprove": ["a"], "colour": "blue"}
    assert converted("x", given) == (NPX, ("autoApprove", "colour"))


def test_the_named_server_of_several_is_meant() -> None:
    assert parse_params("b", {"mcpServers": {"a": NPX, "b": URL}}) == parse_params("b", URL)


def test_a_program_with_a_space_in_its_path_is_not_split(tmp_path: Any) -> None:
    (tmp_path / "my program").touch()
    program = str(tmp_path / "my program")
    assert converted("x", {"command": program}) == ({"command": program}, ())
