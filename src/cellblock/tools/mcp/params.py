"""Parameters of MCP servers: parsing, validation, and references to environment variables.

The form is ipybox's: ``{"command", "args", "env"}`` starts a program and uses its standard streams; ``{"url", "headers"}``
connects to a running server. ``${NAME}`` in any value refers to an environment variable of the host. Stored and compared
parameters keep the references; only a connection sees the values.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from cellblock.errors import InvalidInputError, shown
from cellblock.tools.mcp.pasted import converted
from cellblock.walls.sandbox.policy import Policy
from cellblock.walls.sandbox.settings import read_settings

MAX_PARAMS = 256 * 1024
"""Maximum characters of parameters, as JSON."""

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # token, RFC 9110 section 5.6.2
_TRANSPORTS: dict[object, Literal["http", "sse"]] = {"http": "http", "sse": "sse"}
_MAX_START = 3600
_LOG = logging.getLogger("cellblock.tools")
SCOPE = re.compile(r"[!#-\[\]-~]+")  # RFC 6749 section 3.3


@dataclass(frozen=True, slots=True)
class StdioServer:
    """A server that is a program to start.

    Attributes:
        command: The program: a path, or a name to look up on ``PATH``.
        args: The arguments.
        env: Environment variables, added to the few that every server gets.
        cwd: The working directory; None for an empty one of its own (`place`).
        sandbox: The policy of the server's native sandbox; None for all rights of this process.
        startup_timeout_sec: Limit in seconds for its start; None for the caller's limit.
    """

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    sandbox: Policy | None = None
    startup_timeout_sec: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Convert to the data of `parse_params`, with references unresolved."""
        given: dict[str, Any] = {"command": self.command, "args": [*self.args], "env": dict(self.env)}
        if self.cwd is not None:
            given["cwd"] = self.cwd
        if self.sandbox is not None:
            given["sandbox"] = {"policy": json.loads(json.dumps(self.sandbox.to_dict()))}  # JSON types only
        return given | _limit(self.startup_timeout_sec)


@dataclass(frozen=True, slots=True)
class OAuth:
    """How a person logs in: a client that was registered by hand, scopes, the local port for the browser's answer."""

    client_id: str | None = None
    client_secret: str | None = None
    scopes: tuple[str, ...] = ()
    callback_port: int | None = None

    def to_data(self) -> str | dict[str, Any]:
        """Convert to the value of ``auth`` in parameters."""
        given = {name: getattr(self, name) for name in self.__slots__}
        return {name: [*value] if name == "scopes" else value for name, value in given.items() if value} or "oauth"


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """A server with a URL.

    Attributes:
        url: The URL.
        transport: ``"http"``: streamable HTTP. ``"sse"``: the older one, server-sent events.
        headers: Headers of every request, such as the bearer token.
        startup_timeout_sec: Limit in seconds for the connection; None for the caller's limit.
        auth: The login with OAuth, or None.
    """

    url: str
    transport: Literal["http", "sse"] = "http"
    headers: Mapping[str, str] = field(default_factory=dict)
    startup_timeout_sec: float | None = None
    auth: OAuth | None = None

    @property
    def has_key(self) -> bool:
        """Whether a header or the URL authenticates."""
        host = self.url.partition("://")[2].partition("/")[0]
        return "@" in host or any(name.lower() == "authorization" for name in self.headers)

    def to_dict(self) -> dict[str, Any]:
        """Convert to the data of `parse_params`, with references unresolved."""
        given: dict[str, Any] = {"type": self.transport, "url": self.url, "headers": dict(self.headers)}
        return given | _limit(self.startup_timeout_sec) | ({} if self.auth is None else {"auth": self.auth.to_data()})


def _limit(seconds: float | None) -> dict[str, Any]:
    return {} if seconds is None else {"startup_timeout_sec": seconds}


ServerParams: TypeAlias = StdioServer | RemoteServer


def parse_params(server_name: str, data: Mapping[str, Any]) -> ServerParams:
    """Parse the parameters of a server, also in the forms of other MCP clients (`pasted`).

    Args:
        server_name: The server's name, for error messages.
        data: ``command``, ``args``, ``env``, ``cwd`` and ``sandbox``, or ``url``, ``headers`` and ``auth``. ``sandbox`` is
            True for the default policy, JSON for `Policy.parse`, or the path of a JSON file, which is read now. ``auth`` is
            ``"oauth"``, or a dict of ``client_id``, ``client_secret``, ``scopes`` and ``callback_port``. ``type``, or
            ``transport``, may be ``"stdio"``, ``"http"`` (also ``"streamable_http"``) or ``"sse"``. Without it, a URL means
            server-sent events if its path has ``/sse`` and no ``/mcp``, otherwise streamable HTTP. ``startup_timeout_sec``
            limits its start. Other keys are ignored, and a warning names them.

    Returns:
        The parameters. References ``${NAME}`` stay unresolved.

    Raises:
        InvalidInputError: A key is missing or misspelt, has a value of the wrong type, or cannot be used here; the message
            names server and key.
    """
    if not isinstance(data, Mapping):
        raise InvalidInputError(f"the parameters of MCP server {server_name!r} must be a dict, not {type(data).__name__}")
    ours, ignored = converted(server_name, data)
    if ignored:
        _LOG.warning("ignored in the parameters of MCP server %r: %s", server_name, ", ".join(map(shown, ignored)))
    return stored_params(server_name, ours)


def stored_params(server_name: str, data: Mapping[str, Any]) -> ServerParams:
    """Parse parameters as `to_dict` returns them.

    Raises:
        InvalidInputError: As for `parse_params`.
    """
    if ("command" in data) == ("url" in data):
        raise InvalidInputError(f"the parameters of MCP server {server_name!r} need either 'command' or 'url'")
    fields = _Fields(server_name, data)
    params = _stdio(fields) if "command" in data else _http(fields)
    if len(json.dumps(params.to_dict())) > MAX_PARAMS:
        raise InvalidInputError(f"the parameters of MCP server {server_name!r} have more than {MAX_PARAMS} characters")
    return params


def digest_of(params: ServerParams) -> str:
    """Return a digest of parameters that distinguishes servers with the same name.

    Of variables, headers and the login, it covers only the names, because the values can be secrets and change.
    """
    said = {key: sorted(value) if key in ("env", "headers", "auth") else value for key, value in params.to_dict().items()}
    said.pop("startup_timeout_sec", None)
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()


def resolve(params: ServerParams, environment: Mapping[str, str], *, server_name: str = "") -> ServerParams:
    """Replace every ``${NAME}`` in the values of parameters, once: values of variables are not expanded again.

    Args:
        params: The parameters.
        environment: The host's environment.
        server_name: The server's name, for error messages.

    Returns:
        Parameters for a connection. They may contain secrets and must not be logged.

    Raises:
        InvalidInputError: A variable is not set, or its value is invalid in its place; the message names the variable or
            the key, and no value.
    """

    def fill(value: Any) -> Any:
        if isinstance(value, str):
            return _REFERENCE.sub(look_up, value)
        if isinstance(value, list):
            return [fill(item) for item in value]
        return {key: fill(item) for key, item in value.items()} if isinstance(value, dict) else value

    length = 0

    def look_up(match: re.Match[str]) -> str:
        nonlocal length
        value = environment.get(match[1])
        if not value and match[2] is not None:  # ${NAME:-default}
            value = match[2]
        if value is None:
            raise InvalidInputError(
                f"the parameters of MCP server {server_name!r} refer to ${{{match[1]}}}, which is not set in the environment "
                f"of the host, nor in .env in its current directory: set {match[1]} before the server is first used"
            )
        if (length := length + len(value)) > MAX_PARAMS:  # checked before it is built: a variable can be named 60,000 times
            raise InvalidInputError(f"the parameters of MCP server {server_name!r} have more than {MAX_PARAMS} characters")
        return value

    return stored_params(server_name, fill(params.to_dict()))


def secrets(params: ServerParams, environment: Mapping[str, str]) -> list[str]:
    """Return values that messages about the server must not show: values of referenced variables and of headers.

    Values of fewer than four characters are left out, as they would match everywhere.
    """
    found = {environment.get(name, "") for name, _ in _REFERENCE.findall(json.dumps(params.to_dict()))}
    if isinstance(params, RemoteServer):
        found.update(word for value in params.headers.values() for word in value.split() if not _REFERENCE.search(word))
        found -= {"Bearer", "Basic"}
        if params.auth and params.auth.client_secret and not _REFERENCE.search(params.auth.client_secret):
            found.add(params.auth.client_secret)
    return sorted((value for value in found if len(value) >= 4), key=len, reverse=True)


class _Fields:
    """A reader of typed values from a dict, which refuses wrong values and unknown keys."""

    def __init__(self, server_name: str, data: Mapping[str, Any]) -> None:
        self._server = server_name
        self._data = dict(data)

    def wrong(self, key: object, complaint: str) -> InvalidInputError:
        name = repr(key[:200]) if isinstance(key, str) else shown(key)
        return InvalidInputError(f"{name} in the parameters of MCP server {self._server!r} {complaint}")

    def text(self, key: str, value: object) -> str:
        if not isinstance(value, str):
            raise self.wrong(key, f"must be a string, not {type(value).__name__}")
        if "\0" in value:
            raise self.wrong(key, "must not contain a null character")
        return value

    def required(self, key: str) -> str:
        if not (value := self.text(key, self._data.pop(key))):
            raise self.wrong(key, "must not be empty")
        return value

    def optional(self, key: str) -> str | None:
        value = self._data.pop(key, None)
        return None if value is None else self.text(key, value)

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._data.pop(key, None)
        if value is None:
            return ()
        if not isinstance(value, list | tuple):
            raise self.wrong(key, f"must be a list of strings, not {type(value).__name__}")
        return tuple(self.text(f"{key}[{index}]", item) for index, item in enumerate(value))

    def mapping(self, key: str) -> dict[str, str]:
        value = self._data.pop(key, None)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.wrong(key, f"must be a dict of strings, not {type(value).__name__}")
        return {self.text(key, name): self.text(f"{key}[{name}]", item) for name, item in value.items()}

    def sandbox(self) -> Policy | None:
        value = self._data.pop("sandbox", None)
        source = f"'sandbox' in the parameters of MCP server {self._server!r}"
        if value is None or value is False:
            return None
        if value is True:
            return Policy()
        if isinstance(value, Mapping) and value.keys() == {"policy"}:  # as `to_dict` writes it
            try:
                return Policy.from_dict(value["policy"]).checked()
            except (KeyError, TypeError, AttributeError) as error:
                raise self.wrong("sandbox", f"holds a policy that is damaged: {error!r}") from error
        if not isinstance(value, str | os.PathLike | Mapping):
            raise self.wrong("sandbox", f"must be True, a dict or the path of a file, not {type(value).__name__}")
        try:
            if isinstance(value, Mapping):
                return _policy(dict(value), source)
            return _policy(read_settings(value), f"{source}: {os.fspath(value)}")
        except InvalidInputError as error:
            raise error if str(error).startswith(source) else InvalidInputError(f"{source}: {error}") from error

    def seconds(self, key: str) -> float | None:
        value: float | None = self._data.pop(key, None)
        if value is not None and (type(value) not in (int, float) or not 0 < value <= _MAX_START):
            raise self.wrong(key, f"must be a number of seconds up to {_MAX_START}, not {shown(value)}")
        return value

    def transport(self, allowed: Mapping[object, str]) -> str | None:
        if (value := self._data.pop("type", None)) is None:
            return None
        if not isinstance(value, str) or value not in allowed:
            raise self.wrong("type", f"must be one of {', '.join(map(repr, allowed))}, not {shown(value)}")
        return allowed[value]

    def auth(self) -> OAuth | None:
        value = self._data.pop("auth", None)
        if value is None or value == "oauth":
            return None if value is None else OAuth()
        if not isinstance(value, Mapping):
            raise self.wrong("auth", f"must be 'oauth' or a dict, not {shown(value)}")
        inner = _Fields(self._server, {f"auth[{key}]": item for key, item in value.items()})
        client_id, secret = inner.optional("auth[client_id]"), inner.optional("auth[client_secret]")
        scopes, port = inner.texts("auth[scopes]"), inner._data.pop("auth[callback_port]", None)
        inner.finish("auth[client_id], auth[client_secret], auth[scopes] and auth[callback_port]")
        if secret and not client_id:
            raise self.wrong("auth", "has a client_secret, which needs a client_id")
        if not all(map(SCOPE.fullmatch, scopes)):
            raise self.wrong("auth[scopes]", "must be a list of single scopes, without spaces or quotes")
        if port is not None and (type(port) is not int or not 0 < port < 65536):
            raise self.wrong("auth[callback_port]", f"must be a port from 1 to 65535, not {shown(port)}")
        return OAuth(client_id or None, secret or None, scopes, port)

    def finish(self, known: str) -> None:
        for key in self._data:
            raise self.wrong(key, f"is not known; the known keys are {known}")


def _policy(settings: Any, source: str) -> Policy:
    """Parse the policy of a server. ``.`` alone is the server's own directory; in settings, it is the caller's."""
    policy = Policy.parse(settings, source)
    if "allowWrite" not in settings.get("filesystem", {}):
        return policy
    write = tuple("./" if path == "." else path for path in policy.filesystem.write)
    return replace(policy, filesystem=replace(policy.filesystem, write=write))


def _stdio(fields: _Fields) -> StdioServer:
    fields.transport({"stdio": "stdio"})
    command, args, env = fields.required("command"), fields.texts("args"), fields.mapping("env")
    cwd, sandbox = fields.optional("cwd"), fields.sandbox()
    limit = fields.seconds("startup_timeout_sec")
    fields.finish("command, args, env, cwd, sandbox, startup_timeout_sec and type")
    if sandbox is not None and os.path.basename(command) == "srt":
        raise fields.wrong("sandbox", "would contain srt's own sandbox, and sandboxes cannot be nested: use one of them")
    for name in env:
        if not name or "=" in name:
            raise fields.wrong("env", f"has {name!r}, which cannot be the name of a variable")
    return StdioServer(command, args, env, cwd, sandbox, limit)


def _http(fields: _Fields) -> RemoteServer:
    url, headers = fields.required("url"), fields.mapping("headers")
    transport = fields.transport(_TRANSPORTS)
    if fields.sandbox() is not None:
        raise fields.wrong("sandbox", "is for a server that cellblock starts, not for a server at a URL")
    auth = fields.auth()
    limit = fields.seconds("startup_timeout_sec")
    fields.finish("url, headers, auth, startup_timeout_sec and type")
    if not _REFERENCE.search(url):  # URLs with references are checked after resolving
        _check_url(fields, url)
    for name, value in headers.items():
        if not _HEADER.fullmatch(name):
            raise fields.wrong("headers", f"has {name!r}, which cannot be the name of a header")
        if not (value.isascii() and value.replace("\t", " ").isprintable()):
            raise fields.wrong(f"headers[{name}]", "must be printable ASCII")
    params = RemoteServer(url, _TRANSPORTS[transport or _guess(url)], headers, limit, auth)
    if auth is not None and params.has_key:
        raise fields.wrong("auth", "would replace the header Authorization or the password in the URL: give one of them")
    if auth is not None and not _REFERENCE.search(url) and url[:5].lower() == "http:" and not is_local(url):
        raise fields.wrong("auth", "needs a URL that starts with https://, unless the server is on this machine")
    return params


def is_local(url: str) -> bool:
    """Return whether the host of a URL is a loopback address, or ``localhost``."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _check_url(fields: _Fields, url: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or not url.isprintable() or " " in url:
        raise fields.wrong("url", "must be an address that starts with http:// or https://")


def _guess(url: str) -> str:
    path = url.partition("://")[2].partition("/")[2].partition("?")[0]
    return "sse" if "/sse" in f"/{path}" and "/mcp" not in f"/{path}" else "http"
