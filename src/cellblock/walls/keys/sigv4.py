"""Signs requests to AWS (Signature Version 4) with the key of a secret, which is in no request itself. Functions of data."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from cellblock.common.http_headers import Headers
from cellblock.walls.egress.rules import RefusedError

MOST_SIGNED = 10 * 1024 * 1024
"""Bytes of a body that is hashed, because its head has no hash."""
VALUE = re.compile(r"[A-Za-z0-9_]{16,128}:[A-Za-z0-9/+=]{16,256}(:[A-Za-z0-9/+=_-]+)?", re.ASCII)
"""A key as one value: its id, the key itself, and perhaps a session token."""
VARIABLES = {"AWS_REQUEST_CHECKSUM_CALCULATION": "when_required", "AWS_EC2_METADATA_DISABLED": "true"}
"""Variables with which the SDKs sign no chunks, and look for no other key."""
_ALGORITHM = "AWS4-HMAC-SHA256"
_AUTHORIZATION = re.compile(
    rf"{_ALGORITHM} +Credential=([^/,\s]+)/([0-9]{{8}})/([a-z0-9-]{{1,50}})/([a-z0-9-]{{1,50}})/aws4_request, *"
    r"SignedHeaders=([a-z0-9;_.-]{1,4000}), *Signature=[0-9a-f]{64}",
    re.ASCII,
)
_HASH = re.compile(rb"[0-9a-f]{64}|UNSIGNED-PAYLOAD")
_ISSUERS = ("sts", "iam")
"""Services that issue new keys: no wildcard includes them."""
_CHANGED = frozenset(
    (b"authorization", b"x-amz-security-token", b"connection", b"expect", b"transfer-encoding", b"user-agent")
)
_SLASHES = re.compile(r"//|/\.{1,2}(/|$)")


@dataclass(frozen=True, slots=True)
class Signing:
    """What the client signed with a placeholder, to be signed with the key.

    Attributes:
        value: The key (`VALUE`).
        day: The day of its scope.
        region: The region of its scope.
        service: The service of its scope.
        signed: The names of the headers that the client signed.
    """

    value: str
    day: str
    region: str
    service: str
    signed: frozenset[bytes]


def covers(hosts: Sequence[str], at: str) -> bool:
    """Return whether hosts, which may begin with ``*.``, include a host."""
    if at in hosts:
        return True
    below = [host[1:] for host in hosts if host.startswith("*.")]
    return any(at.endswith(end) for end in below) and not any(label in _ISSUERS for label in at.split("."))


def take_signature(headers: Headers, placeholder: str, value: str, at: str) -> Signing | None:
    """Remove a signature that was made with a placeholder. Return what to sign; None without such a signature.

    Args:
        headers: The headers, which are changed.
        placeholder: The placeholder, instead of the id of the key.
        value: The key.
        at: The host as ``host:port``.

    Raises:
        RefusedError: The scope does not fit the host, or chunks are signed.
    """
    given = [content for name, content in headers if name.lower() == b"authorization"]
    found = _AUTHORIZATION.fullmatch(given[0].decode("latin-1")) if len(given) == 1 else None
    if found is None or found[1] != placeholder:
        return None
    _, day, region, service, names = found.groups()
    _check_scope(region, service, at)
    dates = [content.decode("latin-1") for name, content in headers if name.lower() == b"x-amz-date"]
    if len(dates) != 1 or not re.fullmatch(rf"{day}T[0-9]{{6}}Z", dates[0]):
        raise RefusedError(403, "a signed request needs one header x-amz-date, of the day of its scope")
    hashes = [content for name, content in headers if name.lower() == b"x-amz-content-sha256"]
    if len(hashes) > 1 or not all(map(_HASH.fullmatch, hashes)):
        raise RefusedError(403, "signed chunks are not possible: set AWS_REQUEST_CHECKSUM_CALCULATION=when_required")
    headers[:] = [(name, content) for name, content in headers if name.lower() not in _CHANGED - {b"expect", b"user-agent"}]
    return Signing(value, day, region, service, frozenset(names.encode().split(b";")))


def needs_body(headers: Headers) -> bool:
    """Return whether the body must be hashed, because the head has no hash."""
    return all(name.lower() != b"x-amz-content-sha256" for name, _ in headers)


def sign(signing: Signing, method: str, target: bytes, headers: Headers, body: bytes | None) -> Headers:
    """Return the headers with a signature by the key.

    Args:
        signing: From `take_signature`.
        method: The method.
        target: Path and query, as they are sent.
        headers: The other headers, as they are sent.
        body: The body, if the head has no hash.

    Raises:
        RefusedError: The path can be read in two ways.
    """
    key_id, key, *token = signing.value.split(":", 2)
    headers = headers + [(b"X-Amz-Security-Token", one.encode()) for one in token]
    values: dict[bytes, list[str]] = {}
    for name, content in headers:
        values.setdefault(name.lower(), []).append(" ".join(content.decode("latin-1").split()))
    wanted = (signing.signed - _CHANGED) | {b"host", b"x-amz-date"} | ({b"x-amz-security-token"} if token else set())
    names = sorted(name for name in wanted if name in values)
    path, _, query = target.decode("ascii").partition("?")
    if signing.service != "s3":
        if _SLASHES.search(path):
            raise RefusedError(403, "the path of a signed request cannot contain // or dot segments")
        path = quote(path, safe="/~")
    hashed = values.get(b"x-amz-content-sha256", [hashlib.sha256(body or b"").hexdigest()])[0]
    shown = b";".join(names).decode()
    canonical = [
        method,
        path,
        _sorted(query),
        *(f"{name.decode()}:{','.join(values[name])}" for name in names),
        "",
        shown,
        hashed,
    ]
    digest = hashlib.sha256("\n".join(canonical).encode("latin-1")).hexdigest()
    scope = f"{signing.day}/{signing.region}/{signing.service}/aws4_request"
    text = "\n".join((_ALGORITHM, values[b"x-amz-date"][0], scope, digest))
    last = f"AWS4{key}".encode()
    for part in (*scope.split("/"), text):
        last = hmac.digest(last, part.encode("latin-1"), hashlib.sha256)
    authorization = f"{_ALGORITHM} Credential={key_id}/{scope}, SignedHeaders={shown}, Signature={last.hex()}"
    return [*headers, (b"Authorization", authorization.encode())]


def _sorted(query: str) -> str:
    pairs = sorted(pair.partition("=")[::2] for pair in query.split("&") if pair)
    return "&".join(f"{name}={value}" for name, value in pairs)


def _check_scope(region: str, service: str, at: str) -> None:
    """Check that a signature is for the host, so that no other service of AWS accepts it."""
    host = at.rpartition(":")[0]
    if not host.endswith((".amazonaws.com", ".amazonaws.com.cn")):
        return
    labels = host.split(".")
    if region not in labels and not (region == "us-east-1" and len(labels) == 3):
        raise RefusedError(403, f"the signature is for the region {region}, which is not in the name {host}")
    if not any(label == service or label.startswith(f"{service}-") for label in labels):
        raise RefusedError(403, f"the signature is for the service {service}, which is not in the name {host}")
