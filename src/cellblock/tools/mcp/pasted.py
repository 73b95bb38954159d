"""Converts server configurations of other MCP clients to the parameters of `params`.

Each client has its own names for the same things. What has no meaning here is ignored and named. What would change the
meaning of the server, and cannot be done here, is refused with the reason.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from typing import Any

from cellblock.errors import InvalidInputError, did_you_mean, shown

OURS = ("command", "args", "env", "cwd", "sandbox", "type", "url", "headers", "auth", "startup_timeout_sec")

_FILES = ("mcpServers", "servers", "mcp_servers", "context_servers", "mcp", "extensions")
"""The keys of whole configuration files that have servers by name."""

_RENAMED = {
    "transport": "type",
    "environment": "env",  # opencode
    "envs": "env",  # Goose
    "cmd": "command",
    "uri": "url",
    "serverUrl": "url",  # Windsurf
    "httpUrl": "url",  # Gemini CLI
    "http_headers": "headers",  # Codex
}
_KINDS = {
    "local": "stdio",
    "remote": "http",
    "streamableHttp": "http",
    "streamable_http": "http",
    "streamable-http": "http",
}
_REFUSED = {
    "envFile": "is not read: put its variables into .env of the workspace, and name them in 'env' as ${NAME}",
    "headersHelper": "names a program, which is not run: give the headers, as ${NAME} for secrets",
}
_KNOWN = frozenset(
    (
        "alwaysAllow", "alwaysLoad", "authProviderType", "autoApprove", "available_tools", "bundled",
        "default_tools_approval_mode", "description", "dev", "disabledTools", "disabled_tools", "display_name",
        "enabled_tools", "env_keys", "excludeTools", "icon", "includeTools", "name", "oauth", "required",
        "sandboxEnabled", "settings", "source", "timeout", "tool_timeout_sec", "tools", "trust", "version", "watchPaths",
    )
)  # fmt: skip
"""Keys of other clients that are ignored. They are no misspellings of ours."""

_EDITOR = re.compile(
    r"\$\{(?!env:)([A-Za-z]\w{0,99}):(?!-)[^}]{0,200}\}|\$\{((?:workspaceFolder|file|relativeFile|selected)\w{0,50})\}"
)
_BARE = re.compile(r"(Bearer )?\$([A-Za-z_]\w{0,199})")
_MAX_COMMAND = 4096


def converted(server_name: str, data: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Convert a configuration to our parameters.

    Args:
        server_name: The server's name, for error messages.
        data: The configuration of one server, or a whole file with one server.

    Returns:
        The parameters, and the ignored keys.

    Raises:
        InvalidInputError: Something cannot be done here, or a key is a misspelling of ours.
    """
    given = dict(_only_server(server_name, data))
    for key, why in _REFUSED.items():
        if given.get(key) is not None:
            raise _wrong(server_name, key, why)
    _check_enabled(server_name, given)
    if "httpUrl" in given:  # Gemini CLI, where 'url' means server-sent events
        given.setdefault("type", "http")
    for theirs, name in _RENAMED.items():
        if theirs in given:
            value = given.pop(theirs)
            if value is not None and given.setdefault(name, value) != value:
                raise _wrong(server_name, theirs, f"is not what {name!r} says, {shown(given[name])}")
    if isinstance(kind := given.get("type"), str):
        given["type"] = _KINDS.get(kind, kind)
        if kind == "remote":
            del given["type"]  # opencode: either transport
    if isinstance(auth := given.get("auth"), Mapping) and "CLIENT_ID" in auth:  # Cursor
        given["auth"] = {str(name).lower(): value for name, value in auth.items()}
    if isinstance(milliseconds := given.pop("startup_timeout_ms", None), int | float):
        given.setdefault("startup_timeout_sec", milliseconds / 1000)
    _add_variables(server_name, given)
    _split_command(given)
    ignored = tuple(key for key in given if key not in OURS)
    for key in ignored:
        hint = did_you_mean(key, OURS) if isinstance(key, str) else f"; the known keys are {', '.join(OURS)}"
        if hint and key not in _KNOWN:
            raise _wrong(server_name, key, f"is not known{hint}")
    return {key: _references(server_name, key, given[key]) for key in OURS if key in given}, ignored


def _only_server(server_name: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the server in a whole configuration file; return other data unchanged."""
    for key in _FILES:
        servers = data.get(key)
        if isinstance(servers, Mapping) and "command" not in data and "url" not in data:
            if len(servers) != 1 and server_name not in servers:
                names = ", ".join(shown(name) for name in servers)
                raise _wrong(server_name, key, f"has the servers {names or '(none)'}: register them one by one")
            found = servers.get(server_name, next(iter(servers.values())))
            if not isinstance(found, Mapping):
                raise _wrong(server_name, key, "has no parameters of a server")
            return found
    return data


def _check_enabled(server_name: str, given: dict[str, Any]) -> None:
    for key, off in (("disabled", True), ("enabled", False)):
        value = given.pop(key, None)
        if value is not None and not isinstance(value, bool):
            raise _wrong(server_name, key, f"must be true or false, not {shown(value)}")
        if value is off:
            raise _wrong(server_name, key, f"is {str(value).lower()}: remove it to use the server")


def _add_variables(server_name: str, given: dict[str, Any]) -> None:
    """Add what Codex reads from variables: names passed on to the program, and headers."""
    if (names := given.pop("env_vars", None)) is not None:
        named = [one.get("name") if isinstance(one, Mapping) else one for one in _list(server_name, "env_vars", names)]
        _add(given, "env", {name: f"${{{name}}}" for name in named if isinstance(name, str)})
    if (headers := given.pop("env_http_headers", None)) is not None:
        if not isinstance(headers, Mapping):
            raise _wrong(server_name, "env_http_headers", "must be a dict of strings")
        _add(given, "headers", {name: f"${{{variable}}}" for name, variable in headers.items()})
    if (variable := given.pop("bearer_token_env_var", None)) is not None:
        _add(given, "headers", {"Authorization": f"Bearer ${{{variable}}}"})


def _add(given: dict[str, Any], key: str, more: Mapping[str, str]) -> None:
    known = given.get(key)
    if known is None or isinstance(known, Mapping):
        given[key] = {**more, **(known or {})}


def _split_command(given: dict[str, Any]) -> None:
    """Split a command that has its arguments: a list (opencode), an object (Zed), or one line."""
    command = given.get("command")
    if isinstance(command, Mapping) and "path" in command:
        given.update(command=command["path"], args=command.get("args"))
        _add(given, "env", command.get("env") or {})
        command = given["command"]
    if isinstance(command, str) and len(command) <= _MAX_COMMAND and " " in command.strip() and not os.path.exists(command):
        try:
            command = shlex.split(command)
        except ValueError:
            return
    if isinstance(command, list | tuple) and command:
        rest = given.get("args")
        if rest is None or isinstance(rest, list | tuple):
            given.update(command=command[0], args=[*command[1:], *(rest or ())])


def _references(server_name: str, key: str, value: Any) -> Any:
    """Convert references in a value to ours, and in the values that it contains."""
    if isinstance(value, Mapping):
        bare = key in ("env", "headers")
        return {name: _reference(server_name, key, _bare(item) if bare else item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_reference(server_name, key, item) for item in value]
    return _reference(server_name, key, value)


def _reference(server_name: str, key: str, value: Any) -> Any:
    if not isinstance(value, str) or len(value) > _MAX_COMMAND:
        return value
    value = re.sub(
        r"\$\{env:([A-Za-z_]\w{0,199})\}|\{env:([A-Za-z_]\w{0,199})\}", lambda found: f"${{{found[1] or found[2]}}}", value
    )
    value = value.replace("${userHome}", "${HOME}").replace("${pathSeparator}", "/").replace("${/}", "/")
    value = re.sub(r"(^|=)\$\{workspaceFolder\}", r"\1.", value)
    if unknown := _EDITOR.search(value):
        what = unknown[1] or unknown[2]
        why = (
            "asks a person, which only its editor can do: use ${NAME} and a variable"
            if what == "input"
            else ("is a variable of an editor: write its value, or use ${NAME} and a variable")
        )
        raise _wrong(server_name, key, f"has {unknown[0]}, which {why}")
    if value.startswith("{file:") and value.endswith("}"):
        raise _wrong(server_name, key, f"has {value}, which is not read: use ${{NAME}} and a variable")
    return value


def _bare(value: Any) -> Any:
    """Convert ``$NAME``, as Gemini CLI writes it, if it is the whole value."""
    found = _BARE.fullmatch(value) if isinstance(value, str) else None
    return value if found is None else f"{found[1] or ''}${{{found[2]}}}"


def _list(server_name: str, key: str, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise _wrong(server_name, key, f"must be a list, not {type(value).__name__}")
    return [*value]


def _wrong(server_name: str, key: object, complaint: str) -> InvalidInputError:
    name = repr(key[:200]) if isinstance(key, str) else shown(key)
    return InvalidInputError(f"{name} in the parameters of MCP server {server_name!r} {complaint}")
