"""Binds secrets to hosts and places in requests: services by preset, placeholders, and what the turnkey receives."""

from __future__ import annotations

import functools
import hashlib
import hmac
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib import resources
from typing import Any

from cellblock.common.secret import Secret
from cellblock.errors import InvalidInputError
from cellblock.model.overview import SecretRecord
from cellblock.walls.egress.names import BadNameError, parse_authority
from cellblock.walls.keys.sigv4 import VARIABLES

MARK = "cellblock"
"""In every placeholder, after the prefix of the service."""
_RANDOM = 24
"""The fewest random characters of a placeholder: more than 130 bits."""
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_HTTPS = 443
_BEARER = ("Authorization: Bearer {}",)


@dataclass(frozen=True, slots=True)
class Use:
    """Places of one secret in requests to some hosts, as in `Secret`.

    Attributes:
        hosts: The hosts as ``host:port``, in canonical form; with signatures, ``*.host:port``, too.
    """

    hosts: tuple[str, ...]
    header: tuple[str, ...] = ()
    basic: str = ""
    query: str = ""
    path: str = ""
    body: bool = False
    attach: bool = False
    responses: str = "scan"
    sigv4: bool = False

    @property
    def places(self) -> list[str]:
        """The places, in words."""
        named = {"basic": self.basic, "query": self.query, "path": self.path}
        found = [f"header {form}" for form in self.header] + [f"{name} {form}" for name, form in named.items() if form]
        return found + [name for name in ("body", "attach", "sigv4") if getattr(self, name)]


@dataclass(frozen=True, slots=True)
class Binding:
    """A secret with its hosts and places.

    Attributes:
        name: Its name, also of the variable in the sandbox.
        secret: Its declaration.
        uses: Its hosts and places.
        prefix: The beginning of its placeholder.
        length: The length of its placeholder.
    """

    name: str
    secret: Secret
    uses: tuple[Use, ...]
    prefix: str = ""
    length: int = 0

    @property
    def hosts(self) -> list[str]:
        """The hosts as ``host:port``."""
        return [host for use in self.uses for host in use.hosts]

    def record(self, last_used: float | None = None) -> SecretRecord:
        """Return the description for users."""
        scheme, _, rest = self.secret.source.partition(":")
        # The arguments of a program could contain a password.
        source = f"command:{''.join(rest.split(maxsplit=1)[:1])}" if scheme == "command" else self.secret.source
        places = dict.fromkeys(place for use in self.uses for place in use.places)
        return SecretRecord(self.name, source, tuple(dict.fromkeys(self.hosts)), tuple(places), last_used)

    def variables(self, seed: bytes) -> dict[str, str]:
        """Return the variables of a session that contain the placeholder."""
        if not self.secret.sigv4:
            return {self.name: self.placeholder(seed)}
        # The key in the request is a placeholder, and the request is signed again.
        return dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), self.placeholder(seed)) | VARIABLES

    def placeholder(self, seed: bytes) -> str:
        """Return the placeholder, which stays the same for a session: it contains nothing of the value."""
        digest = hmac.digest(seed, b"placeholder " + self.name.encode(), hashlib.sha512)
        digest += hmac.digest(seed, b"more " + self.name.encode(), hashlib.sha512) * 2
        count = max(self.length - len(self.prefix) - len(MARK), _RANDOM)
        found = "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[2:])[: count - 2]
        # A digit and a capital distinguish it from words (`fill.has_placeholder`).
        return f"{self.prefix}{MARK}{digest[0] % 10}{_ALPHABET[10 + digest[1] % 26]}{found}"


def bind(name: str, secret: Secret) -> Binding:
    """Return the binding of a secret.

    Raises:
        InvalidInputError: It has no host, or an invalid one.
    """
    preset = _presets().get(name, {})
    names = ("header", "basic", "query", "path", "body", "attach")
    given: dict[str, Any] = {name: value for name in names if (value := getattr(secret, name)) not in ((), "", False)}
    uses = [_use(use) for use in preset.get("use", ())]
    if secret.sigv4:
        uses = [Use(secret.hosts, sigv4=True, responses="pass")]
        preset = {"prefix": "AKIA"}
    elif given:
        hosts = secret.hosts or tuple(host for use in uses for host in use.hosts)
        uses = [_use({"header": _BEARER, **given} if given.keys() == {"attach"} else given, hosts)]
    elif secret.hosts:
        places = uses or [Use((), header=_BEARER)]
        known = {host: use for use in uses for host in use.hosts}
        # A host of the service keeps its places. Others have all of them.
        uses = [replace(use, hosts=(host,)) for host in secret.hosts for use in ([known[host]] if host in known else places)]
    if not any(use.hosts for use in uses):
        raise InvalidInputError(
            f"secret {name} has no host: name the hosts that may receive it, as in --secret {name}=SOURCE@api.example.org, or "
            f"secrets={{'{name}': Secret.from_env('{name}', hosts=['api.example.org'])}}"
        )
    checked = tuple(
        replace(use, hosts=_authorities(name, use), responses="pass" if use.sigv4 else secret.responses) for use in uses
    )
    return Binding(name, secret, checked, preset.get("prefix", ""), preset.get("length", 0))


def patterns(bindings: Iterable[Binding]) -> tuple[str, ...]:
    """Return patterns that allow the hosts of secrets."""
    return tuple(dict.fromkeys(host.removesuffix(f":{_HTTPS}") for binding in bindings for host in binding.hosts))


def described(binding: Binding, seed: bytes, value: str) -> dict[str, Any]:
    """Return what the turnkey needs of a secret, with its value."""
    uses = [asdict(use) for use in binding.uses]
    return {"name": binding.name, "placeholder": binding.placeholder(seed), "value": value, "uses": uses}


def _use(data: Mapping[str, Any], hosts: tuple[str, ...] = ()) -> Use:
    given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    return Use(**{"hosts": hosts, **given})


def _authorities(name: str, use: Use) -> tuple[str, ...]:
    found = []
    for host in use.hosts:
        below = "*." if use.sigv4 and host.startswith("*.") else ""
        try:
            target = parse_authority(host.removeprefix(below), _HTTPS)
        except BadNameError as error:
            what = "a secret is bound to exact names, without *" if "*" in host else str(error)
            raise InvalidInputError(f"host {host!r} of secret {name}: {what}") from None
        if target.port == 80:
            raise InvalidInputError(f"host {host!r} of secret {name}: port 80 is for http://, which never receives secrets")
        found.append(f"{below}{target}")
    return tuple(dict.fromkeys(found))


@functools.cache
def _presets() -> dict[str, dict[str, Any]]:
    data = tomllib.loads(resources.files("cellblock.walls.keys").joinpath("presets.toml").read_text("utf-8"))
    return {variable: preset for preset in data["preset"] for variable in preset["variables"]}
