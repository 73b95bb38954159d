"""Ordered rules that decide before people do, read from a file. Pure functions of data."""

from __future__ import annotations

import difflib
import json
import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, get_args

from cellblock.common import config
from cellblock.common.glob import Glob
from cellblock.errors import InvalidInputError, shown
from cellblock.model.decisions import CallKind
from cellblock.model.untrusted import parse_json
from cellblock.tools.approvals.call import Call
from cellblock.walls.egress.lines import WEBSOCKET, RequestLine, authorities
from cellblock.walls.egress.rules import DEFAULT_PORTS

Outcome = Literal["allow", "deny", "ask"]

_MAX_TEXT = 64 * 1024
"""Longer arguments are not compared with wildcards: a rule that allows does not match, every other rule does."""

_MEANING = {"program", "environment"}
"""Arguments that change what a shell command of the same text does."""

_MAX_FILE = 1024 * 1024
_TOP = ("default", "rule")
_KEYS = ("decision", "kind", "server", "tool", "arguments", "read_only", "destructive", "root", "digest")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision of the rules.

    Attributes:
        outcome: ``allow``, ``deny`` or ``ask``.
        rule: The text of the deciding rule, or ``default``.
        names_server: Whether the rule identifies servers only by name.
    """

    outcome: Outcome
    rule: str
    names_server: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule. Properties that are not set match everything.

    Attributes:
        decision: The decision about a matching call.
        kind: The kind of call.
        server: Pattern of server names; ``*`` is any text, ``?`` any character.
        tool: Pattern of tool names.
        arguments: Patterns of arguments, by name. In text, ``*`` stops at a ``/`` and ``**`` does not; other values must be
            equal. A missing argument matches nothing. A rule that allows shell commands by text does not cover commands
            with variables that the code changed (the argument ``environment``), or with a program that reads them as a
            script (``program``), unless it names these arguments.
        read_only: The required hint of the server about its tool, if any. It proves nothing.
        destructive: As `read_only`.
        root: The directory of the server's registration; None for any.
        digest: The digest of the server's parameters, as shown by ``cellblock tools list --json``; None for any.
    """

    decision: Outcome
    kind: CallKind = "tool"
    server: str = "*"
    tool: str = "*"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    read_only: bool | None = None
    destructive: bool | None = None
    root: str | None = None
    digest: str | None = None

    def matches(self, call: Call) -> bool:
        """Return whether this rule applies to a call."""
        return (
            self.kind == call.kind
            and _name(self.server, call.server)
            and _name(self.tool, call.tool)
            and self.read_only in (None, call.hints.read_only)
            and self.destructive in (None, call.hints.destructive)
            and self.root in (None, call.origin.root)
            and self.digest in (None, call.origin.digest)
            and (not self.arguments or self._matches(call.parsed))
        )

    def _matches(self, given: Mapping[str, Any]) -> bool:
        # With another PATH or LD_PRELOAD, or as the input of another program, a command's text does not identify the
        # executed code.
        if self.kind == "shell" and self.decision == "allow" and (given.keys() - self.arguments.keys()) & _MEANING:
            return False
        # Nothing inspects what follows on a WebSocket, so only its name allows one.
        if (
            self.kind == "http"
            and self.decision == "allow"
            and given.get("method") == WEBSOCKET != self.arguments.get("method")
        ):
            return False
        return all(
            name in given and _argument(wanted, given[name], strict=self.decision == "allow")
            for name, wanted in self.arguments.items()
        )

    def __str__(self) -> str:
        parts = [self.decision, *([self.kind] if self.kind != "tool" else []), f"{self.server}.{self.tool}"]
        parts += [f"{name}={json.dumps(value, sort_keys=True)}" for name, value in self.arguments.items()]
        for name, value in (("read_only", self.read_only), ("destructive", self.destructive)):
            parts += [] if value is None else [f"{name}={str(value).lower()}"]
        parts += [f"{name}={value!r}" for name, value in (("root", self.root), ("digest", self.digest)) if value is not None]
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Rules:
    """Ordered rules: the first rule that matches a call decides.

    Attributes:
        rules: The rules.
        default: The decision about a call that no rule matches.
    """

    rules: tuple[Rule, ...] = ()
    default: Outcome = "ask"

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load rules from a file.

        Args:
            path: A TOML file with ``[[rule]]`` tables, or a JSON file with a list ``rule``.

        Raises:
            InvalidInputError: The file cannot be read, or a key or value is invalid; the message names it.
        """
        return cls.parse(read_rules(path), str(path))

    @classmethod
    def parse(cls, data: object, source: str = "the rules") -> Self:
        """Parse rules from plain data.

        Args:
            data: ``{"default": …, "rule": [{"decision": …, "server": …, "tool": …, "arguments": {…}, …}, …]}``.
            source: The data's name in errors.

        Raises:
            InvalidInputError: A key or a value is invalid; the message names it.
        """
        top = _table(data, source, _TOP)
        rules = top.get("rule", [])
        if not isinstance(rules, list):
            raise InvalidInputError(f"{source}: rule must be a list of tables, [[rule]] in TOML, not {shown(rules)}")
        return cls(
            tuple(_rule(item, f"{source}: rule {number}") for number, item in enumerate(rules, 1)),
            _choice(top.get("default", "ask"), f"{source}: default", get_args(Outcome)),
        )


def read_rules(path: str | os.PathLike[str]) -> Any:
    """Return the data of a file of rules, for `Rules.parse`.

    Raises:
        InvalidInputError: The file cannot be read or parsed.
    """
    try:
        data = config.read_file(Path(path).expanduser(), _MAX_FILE)
        return parse_json(data, what="it") if Path(path).suffix == ".json" else config.parse_toml(data)
    except OSError as error:
        raise InvalidInputError(f"The rules in {path} cannot be read: {error.strerror}.") from error
    except RecursionError as error:
        raise InvalidInputError(f"The rules in {path} cannot be parsed: they are nested too deeply.") from error
    except ValueError as error:
        raise InvalidInputError(f"The rules in {path} cannot be parsed: {error}") from error


def decide(rules: Rules, call: Call) -> Verdict:
    """Decide a call by the first matching rule. Hints and arguments are untrusted.

    Args:
        rules: The rules.
        call: The call.

    Returns:
        The verdict, with the text of the rule.
    """
    for rule in rules.rules:
        if rule.matches(call):
            return Verdict(rule.decision, str(rule), rule.server != "*" and rule.digest is None)
    return Verdict(rules.default, "default")


def _name(pattern: str, name: str) -> bool:
    return pattern in ("*", name) or Glob.of(pattern, paths=False).matches(name)


def _argument(wanted: Any, given: Any, *, strict: bool) -> bool:
    if not isinstance(wanted, str) or not isinstance(given, str):
        return _same(wanted, given)
    if "*" not in wanted and "?" not in wanted:
        return wanted == given
    if len(given) > _MAX_TEXT:
        return not strict
    glob = Glob.of(wanted, paths=True)
    if ".." not in given.split("/"):
        return glob.matches(given)
    # "/data/../etc" is below /data for a pattern, but not for a server. Rules that allow therefore do not match it.
    return not strict and (glob.matches(given) or glob.matches(posixpath.normpath(given)))


def _same(first: Any, second: Any) -> bool:
    """Return whether two JSON values are equal. Unlike in Python, true is not 1; 1 is 1.0."""
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_same(value, second[key]) for key, value in first.items())
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(_same, first, second))
    return bool(first == second)


def _rule(data: object, source: str) -> Rule:
    table = _table(data, source, _KEYS)
    if "decision" not in table:
        raise InvalidInputError(f"{source}: decision is missing: allow, deny or ask")
    arguments = table.get("arguments", {})
    if not isinstance(arguments, dict):
        raise InvalidInputError(f"{source}: arguments must be a table of patterns by name, not {shown(arguments)}")
    for name, value in arguments.items():
        _check_argument(value, f"{source}: arguments.{str(name)[:100]}")
    kind = _choice(table.get("kind", "tool"), f"{source}: kind", get_args(CallKind))
    if kind == "http":
        arguments = _http_arguments(arguments, source)
    return Rule(
        _choice(table["decision"], f"{source}: decision", get_args(Outcome)),
        kind,
        _text(table, "server", source),
        _text(table, "tool", source),
        arguments,
        _flag(table, "read_only", source),
        _flag(table, "destructive", source),
        _exact(table, "root", source),
        _exact(table, "digest", source),
    )


def _http_arguments(arguments: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the arguments of a rule about requests, with the host in canonical form."""
    given = {"method": "*", "path": "/**", **arguments}
    if given.keys() != {"host", "method", "path"} or not all(isinstance(value, str) for value in given.values()):
        raise InvalidInputError(f"{source}: a rule of kind 'http' needs the argument host, and can have method and path")
    if not given["path"].startswith("/"):
        raise InvalidInputError(f"{source}: the path of a request begins with /, not {shown(given['path'])}")
    try:
        line = RequestLine.parse(f"{given['method']} {given['host']}{given['path']}")
    except InvalidInputError as error:
        raise InvalidInputError(f"{source}: {error}") from None
    if line.port in DEFAULT_PORTS or given["path"] != line.path:
        raise InvalidInputError(f"{source}: the host must be a name, without the ports 80 and 443 and without a path")
    return {**arguments, "host": line.authority}


def http_authorities(rules: Rules) -> set[str]:
    """Return the hosts that rules of kind ``http`` are about, as ``host:port``."""
    hosts = {str(rule.arguments.get("host", "")) for rule in rules.rules if rule.kind == "http"}
    lines = [RequestLine.parse(f"* {host}/**") for host in hosts]
    return {at for line in lines for at in authorities(line.host, line.port)}


def _check_argument(value: Any, source: str) -> None:
    """Refuse a value that cannot be compared with an argument, or never equals one."""
    try:
        parse_json(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError, InvalidInputError) as error:
        raise InvalidInputError(f"{source}: {shown(value)} cannot be an argument") from error
    if isinstance(value, str) and ("*" in value or "?" in value):
        _check_pattern(value, source)


def _check_pattern(pattern: str, source: str) -> None:
    """Refuse a pattern that cannot be compiled, already when the rules are read."""
    try:
        Glob(pattern, paths=False)
    except InvalidInputError as error:
        raise InvalidInputError(f"{source}: {error}") from error


def _table(data: object, source: str, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise InvalidInputError(f"{source} must be a table, not {shown(data)}")
    for key in data:
        if key not in known:
            close = difflib.get_close_matches(shown(key).strip("'"), known, 1, 0.5)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
            raise InvalidInputError(f"{source}: unknown key {shown(key)}; {hint}")
    return data


def _choice(value: object, source: str, known: tuple[Any, ...]) -> Any:
    if value not in known:
        raise InvalidInputError(f"{source} must be {', '.join(known[:-1])} or {known[-1]}, not {shown(value)}")
    return value


def _text(table: Mapping[str, Any], key: str, source: str) -> str:
    value = table.get(key, "*")
    if not isinstance(value, str) or not value:
        raise InvalidInputError(f"{source}: {key} must be a pattern such as 'read_*', not {shown(value)}")
    _check_pattern(value, f"{source}: {key}")
    return value


def _exact(table: Mapping[str, Any], key: str, source: str) -> str | None:
    value = table.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value or (key == "root" and not value.startswith("/")):
        wanted = "an absolute path" if key == "root" else "a digest of 'cellblock tools list --json'"
        raise InvalidInputError(f"{source}: {key} must be {wanted}, not {shown(value)}")
    return value.rstrip("/") or "/" if key == "root" else value


def _flag(table: Mapping[str, Any], key: str, source: str) -> bool | None:
    value = table.get(key)
    if value is not None and not isinstance(value, bool):
        raise InvalidInputError(f"{source}: {key} must be true or false, not {shown(value)}")
    return value
