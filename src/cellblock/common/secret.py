"""Declarations of secrets: where a value comes from, which hosts receive it, and where in a request. Never the value itself.

Standard library only, because the command line loads this at each start.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

from cellblock.errors import InvalidInputError, shown

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}", re.ASCII)
_SCHEMES = ("env:", "file:", "keyring:", "op://", "command:", "aws:")
_HOSTS = re.compile(r"[A-Za-z0-9_.:*\[\]-]++(,[A-Za-z0-9_.:*\[\]-]++)*+", re.ASCII)
_MOST = 64
"""Secrets of one session."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Secret:
    """A secret that code uses by a placeholder. cellblock inserts the value into requests to its hosts (docs/keys.md).

    Attributes:
        source: ``env:NAME``, ``file:PATH``, ``keyring:SERVICE/USER``, ``op://VAULT/ITEM/FIELD``, ``command:WORDS``, or
            ``aws:PROFILE``, which implies ``sigv4``. Empty: the entry of that name in ``secrets.toml``, or else the
            variable of that name.
        hosts: Hosts that receive the value, such as ``"api.example.org"`` or ``"api.example.org:8443"``. By default, the
            hosts of the service that is known by the secret's name.
        header: Headers that contain it, such as ``"X-Key: {}"``. Without any place, ``"Authorization: Bearer {}"``.
        basic: Basic authentication, such as ``"user:{}"``.
        query: A parameter of the query string.
        path: A segment of the path, such as ``"bot{}"``.
        body: Whether JSON and URL-encoded forms of up to 256 KiB can contain it, anywhere.
        sigv4: Whether it is a key of AWS, with which the proxy signs requests. It is in no request, so the hosts may begin
            with ``*.``.
        attach: Whether to add the first header, or Basic authentication, to requests without it.
        responses: ``"scan"`` replaces the value in responses. ``"pass"`` forwards them unchanged, also compressed ones: the
            code can then read the value if the host returns it.
        refresh: Seconds after which the value is read again; None for never.
        ask: Whether a person must allow requests that contain it: ``"first"`` for the first of a session, ``"each"`` for all.

    Raises:
        InvalidInputError: A value is invalid.
    """

    source: str = ""
    hosts: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    basic: str = ""
    query: str = ""
    path: str = ""
    body: bool = False
    attach: bool = False
    sigv4: bool = False
    responses: Literal["scan", "pass"] = "scan"
    refresh: float | None = None
    ask: Literal["", "first", "each"] = ""

    def __post_init__(self) -> None:
        for name in ("hosts", "header"):
            value = getattr(self, name)
            items = (value,) if isinstance(value, str) else value
            if not isinstance(items, Sequence) or not all(isinstance(item, str) and item for item in items):
                raise InvalidInputError(f"{name} of a secret must be a list of texts, not {shown(value)}")
            object.__setattr__(self, name, tuple(items))
        for name in ("source", "basic", "query", "path"):
            if not isinstance(getattr(self, name), str):
                raise InvalidInputError(f"{name} of a secret must be a text, not {shown(getattr(self, name))}")
        if self.source and not self.source.startswith(_SCHEMES):
            # The text may be the value itself: do not repeat it.
            raise InvalidInputError(f"the source of a secret must begin with {', '.join(_SCHEMES)}: it is never the value")
        if self.source.startswith("file:") and not self.source.startswith(("file:/", "file:~")):
            raise InvalidInputError(f"the source {shown(self.source)} must be an absolute path: another process may read it")
        for header in self.header:
            _check_form(header.partition(":")[2], "header", "'X-Key: {}'")
        for name, example in (("basic", "'user:{}'"), ("path", "'bot{}'")):
            if form := getattr(self, name):
                _check_form(form, name, example)
        if self.basic and ":" not in self.basic:
            raise InvalidInputError(f"basic of a secret must contain a colon, such as 'user:{{}}', not {shown(self.basic)}")
        for name in ("attach", "body", "sigv4"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidInputError(f"{name} of a secret must be True or False, not {shown(getattr(self, name))}")
        if self.source.startswith("aws:"):
            object.__setattr__(self, "sigv4", True)
        if self.sigv4 and (self.header or self.basic or self.query or self.path or self.body or self.attach):
            raise InvalidInputError("a secret with sigv4 signs requests, so it has no other place in them")
        if self.responses not in ("scan", "pass"):
            raise InvalidInputError(f"responses of a secret must be 'scan' or 'pass', not {shown(self.responses)}")
        if self.ask not in ("", "first", "each"):
            raise InvalidInputError(f"ask of a secret must be 'first' or 'each', not {shown(self.ask)}")
        if self.refresh is not None and not (isinstance(self.refresh, int | float) and self.refresh > 0):
            raise InvalidInputError(f"refresh of a secret must be a positive number of seconds, not {shown(self.refresh)}")

    @classmethod
    def from_env(cls, variable: str, /, **places: Any) -> Self:
        """Create a secret whose value is in an environment variable of the process that runs the session.

        Args:
            variable: The variable's name.
            places: Further attributes.
        """
        return cls(source=f"env:{variable}", **places)

    @classmethod
    def from_file(cls, file: str, /, **places: Any) -> Self:
        """Create a secret whose value is the content of a file, without a final newline."""
        return cls(source=f"file:{file}", **places)

    @classmethod
    def from_command(cls, command: Sequence[str], /, **places: Any) -> Self:
        """Create a secret whose value a program prints. It runs without a shell, for at most 10 seconds."""
        if isinstance(command, str):
            raise InvalidInputError("command of a secret must be a list of words, such as ['pass', 'show', 'api']")
        return cls(source=f"command:{shlex.join(command)}", **places)

    @classmethod
    def aws(cls, profile: str = "", /, **places: Any) -> Self:
        """Create a secret that is a key of AWS, with which the proxy signs requests.

        Args:
            profile: A profile of ``~/.aws/credentials``; by default, the key of the variables ``AWS_ACCESS_KEY_ID`` and so on.
            places: Further attributes: ``hosts`` is needed.
        """
        return cls(source=f"aws:{profile}", **places)

    @classmethod
    def from_keyring(cls, service: str, user: str, /, **places: Any) -> Self:
        """Create a secret whose value is in the system's keyring. This needs the package keyring."""
        return cls(source=f"keyring:{service}/{user}", **places)

    @classmethod
    def from_op(cls, reference: str, /, **places: Any) -> Self:
        """Create a secret whose value is in 1Password, by a reference ``op://VAULT/ITEM/FIELD``. This needs its program op."""
        return cls(source=reference, **places)

    @classmethod
    def from_dict(cls, name: str, data: object) -> Self:
        """Create a secret from JSON data.

        Raises:
            InvalidInputError: A key is unknown, or a value is invalid.
        """
        if isinstance(data, str):
            return cls(source=data)
        known = {item.name for item in dataclasses.fields(cls)}
        if not isinstance(data, Mapping) or not data.keys() <= known:
            found = data.keys() - known if isinstance(data, Mapping) else ()
            unknown = f" has no key {min(map(str, found))!r}" if found else " is invalid"
            raise InvalidInputError(f"secret {name}{unknown}: it can have {', '.join(sorted(known))}")
        return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes that differ from their defaults, as JSON data."""
        found = {item.name: (getattr(self, item.name), item.default) for item in dataclasses.fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, (value, default) in found.items()
            if value != default
        }


Secrets: TypeAlias = Mapping[str, Secret | str | Mapping[str, Any]] | Sequence[str] | str
"""Secrets as callers declare them: by name, or as texts ``NAME[=SOURCE[@HOST,…]]``."""


def parse_secrets(given: Secrets) -> dict[str, dict[str, Any]]:
    """Return secrets as JSON data by name.

    Args:
        given: The declarations.

    Raises:
        InvalidInputError: A declaration is invalid.
    """
    if isinstance(given, Mapping):
        pairs = [
            (name, value if isinstance(value, Secret) else Secret.from_dict(str(name), value)) for name, value in given.items()
        ]
    elif isinstance(given, str):
        pairs = [_parse(given)]
    elif isinstance(given, Sequence) and all(isinstance(item, str) for item in given):
        pairs = [_parse(item) for item in given]
    else:
        raise InvalidInputError("secrets must be a dict of Secret by name, or a list of texts NAME[=SOURCE[@HOST]]")
    for name, _ in pairs:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidInputError(f"a secret needs the name of an environment variable, not {shown(name)}")
    if len(pairs) > _MOST:
        raise InvalidInputError(f"a session can have at most {_MOST} secrets, not {len(pairs)}")
    return {name: secret.to_dict() for name, secret in pairs}


def _parse(text: str) -> tuple[str, Secret]:
    name, equals, rest = text.partition("=")
    if not equals:
        return name, Secret()
    source, at, hosts = rest.rpartition("@")
    if not at or not _HOSTS.fullmatch(hosts):
        source, hosts = rest, ""
    try:
        return name, Secret(source=source, hosts=tuple(hosts.split(",")) if hosts else ())
    except InvalidInputError as error:
        raise InvalidInputError(f"secret {name}: {error}") from None


def _check_form(form: str, name: str, example: str) -> None:
    if form.count("{}") != 1 or not form.isprintable():
        raise InvalidInputError(f"{name} of a secret must contain {{}} once, such as {example}, not {shown(form)}")
