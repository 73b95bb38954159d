"""Requests to AWS that are signed anew: as botocore signs them with the key, and only for the host of the connection."""

from __future__ import annotations

import datetime
from typing import Any
from urllib.parse import urlsplit

import pytest

from cellblock import InvalidInputError, Secret
from cellblock.common.secret import parse_secrets
from cellblock.walls.egress.rules import RefusedError
from cellblock.walls.keys.bindings import bind, described
from cellblock.walls.keys.fill import fill
from cellblock.walls.keys.session_keys import bindings_of
from cellblock.walls.keys.sigv4 import covers, needs_body, sign

from .test_opened import SEED, World
from .tls_servers import TlsServer

ID, KEY, TOKEN = "AKIAREALREALREALREAL", "real/key+0123456789abcdefghijklmnopqrstu", "token/0123456789+="
NAMES = "content-type;host;x-amz-date"
SCOPE = "20261130/eu-west-1"


def secret(*hosts: str, token: bool = False, removed: bool = False) -> dict[str, Any]:
    binding = bind("AWS", Secret.aws("dev", hosts=hosts))
    value = f"{ID}:{KEY}:{TOKEN}" if token else f"{ID}:{KEY}"
    return described(binding, SEED, value) | {"former": [], "removed": removed}


PLACEHOLDER = secret("a.test")["placeholder"]


def signed(scope: str, *headers: tuple[bytes, bytes], names: str = NAMES, key: str = PLACEHOLDER) -> list[tuple[bytes, bytes]]:
    """Return headers with a signature that was made with the placeholder."""
    value = f"AWS4-HMAC-SHA256 Credential={key}/{scope}/aws4_request, SignedHeaders={names}, Signature={'0' * 64}"
    return [(b"X-Amz-Date", b"20261130T120000Z"), *headers, (b"Authorization", value.encode())]


def filled(target: bytes, headers: list[tuple[bytes, bytes]], at: str, *secrets: dict[str, Any]) -> Any:
    return fill(target, headers, at, secrets or [secret("*.eu-west-1.amazonaws.com", "dynamodb.eu-west-1.amazonaws.com")])


@pytest.mark.slow
@pytest.mark.parametrize("token", [False, True])
@pytest.mark.parametrize(
    ("service", "url", "method"),
    [
        ("s3", "https://s3.eu-west-1.amazonaws.com/bucket/a%20b/../c?list-type=2&prefix=a%2Fb&x", "GET"),
        ("s3", "https://bucket.s3.eu-west-1.amazonaws.com/%C3%A4", "PUT"),
        ("dynamodb", "https://dynamodb.eu-west-1.amazonaws.com/", "POST"),
        ("bedrock", "https://bedrock-runtime.eu-west-1.amazonaws.com/model/anthropic.claude%3A0/invoke", "POST"),
        ("sqs", "https://sqs.eu-west-1.amazonaws.com/123/queue?Action=SendMessage&A=1", "POST"),
    ],
)
def test_a_request_is_signed_as_by_botocore(
    service: str, url: str, method: str, token: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from botocore import auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    signer = auth.S3SigV4Auth if service == "s3" else auth.SigV4Auth
    body = b"" if method == "GET" else b'{"a": 1}'
    now = datetime.datetime(2026, 11, 30, 12)
    monkeypatch.setattr(auth, "get_current_datetime", lambda **_: now)

    def by_botocore(*key: str) -> dict[str, str]:
        request = AWSRequest(method, url, {"Content-Type": "application/json", "X-Amz-Target": "a  b"}, body)
        signer(Credentials(*key), service, "eu-west-1").add_auth(request)
        return dict(request.headers.items())

    inside = by_botocore(PLACEHOLDER, PLACEHOLDER)
    parts = urlsplit(url)
    headers = [(b"Host", parts.netloc.encode()), *((name.encode(), value.encode()) for name, value in inside.items())]
    target = f"{parts.path}{'?' * bool(parts.query)}{parts.query}".encode()
    hosts = ("*.eu-west-1.amazonaws.com",)
    head = filled(target, headers, f"{parts.netloc}:443", secret(*hosts, token=token))
    assert head.names == ["AWS"]
    assert needs_body(head.headers) is (service != "s3")
    sent = {name.decode().lower(): value.decode() for name, value in sign(head.signing, method, target, head.headers, body)}
    real = by_botocore(ID, KEY, *([TOKEN] if token else []))
    assert sent["authorization"] == real["Authorization"]
    assert sent.get("x-amz-security-token") == (TOKEN if token else None)
    assert PLACEHOLDER not in str(sent)


def test_28_what_another_service_could_accept_is_refused() -> None:
    cases: list[tuple[str, list[tuple[bytes, bytes]], bytes, str]] = [
        (
            "s3.eu-west-1.amazonaws.com",
            signed("20261130/us-east-1/s3"),
            b"/",
            "the region us-east-1, which is not in the name",
        ),
        ("s3.eu-west-1.amazonaws.com", signed(f"{SCOPE}/sqs"), b"/", "the service sqs, which is not in the name"),
        ("s3.eu-west-1.amazonaws.com", signed("20261129/eu-west-1/s3"), b"/", "of the day of its scope"),
        (
            "s3.eu-west-1.amazonaws.com",
            signed(f"{SCOPE}/s3", (b"X-Amz-Content-Sha256", b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD")),
            b"/",
            "signed chunks",
        ),
        ("s3.eu-west-1.amazonaws.com", [], f"/?X-Amz-Credential={PLACEHOLDER}%2F20261130".encode(), "the URL contains"),
        (
            "s3.eu-west-1.amazonaws.com",
            [(b"Authorization", f"AWS4-ECDSA-P256-SHA256 Credential={PLACEHOLDER}/20261130/s3/aws4_request".encode())],
            b"/",
            "the header Authorization contains",
        ),
        ("sts.eu-west-1.amazonaws.com", signed(f"{SCOPE}/sts"), b"/", "not for this host"),
        ("eu-west-1.amazonaws.com", signed(f"{SCOPE}/s3"), b"/", "not for this host"),
        ("s3.eu-west-1.amazonaws.com.evil.test", signed(f"{SCOPE}/s3"), b"/", "not for this host"),
        ("other.test", signed(f"{SCOPE}/s3"), b"/", "not for this host"),
    ]
    for at, headers, target, why in cases:
        with pytest.raises(RefusedError, match=why):
            filled(target, [(b"Host", at.encode()), *headers], f"{at}:443")


def test_a_removed_key_signs_nothing() -> None:
    with pytest.raises(RefusedError, match="AWS was removed"):
        filled(b"/", signed(f"{SCOPE}/s3"), "a.test:443", secret("a.test", removed=True))


def test_a_service_that_issues_keys_must_be_named() -> None:
    wildcard, named = "*.eu-west-1.amazonaws.com:443", "sts.eu-west-1.amazonaws.com:443"
    assert covers([wildcard], "b.s3.eu-west-1.amazonaws.com:443")
    assert not covers([wildcard], "s3.eu-west-1.amazonaws.com:8443")
    assert not covers([wildcard], named)
    assert covers([wildcard, named], named)


def test_a_key_has_no_other_place() -> None:
    cases: list[dict[str, Any]] = [{"header": ["X-Key: {}"]}, {"body": True}, {"attach": True}]
    for places in cases:
        with pytest.raises(InvalidInputError, match="signs requests"):
            Secret.aws(hosts=["a.test"], **places)


def test_a_declaration_in_one_text() -> None:
    (binding,) = bindings_of(parse_secrets(["AWS=aws:dev@*.eu-west-1.amazonaws.com,sts.eu-west-1.amazonaws.com"]))
    assert binding.hosts == ["*.eu-west-1.amazonaws.com:443", "sts.eu-west-1.amazonaws.com:443"]
    assert binding.record().places == ("sigv4",)
    assert binding.variables(SEED)["AWS_ACCESS_KEY_ID"].startswith("AKIAcellblock")
    with pytest.raises(InvalidInputError, match="has no host"):
        bindings_of(parse_secrets(["AWS=aws:"]))
    with pytest.raises(InvalidInputError, match="exact names"):
        bindings_of(parse_secrets(["OTHER=env:OTHER@*.a.test"]))


async def test_a_body_without_a_hash_is_hashed_up_to_a_limit() -> None:
    with TlsServer(host="api.test") as server:
        world = World(server)
        world.secrets = [secret(at := world.at)]
        headers = [
            f"{name.decode()}: {value.decode()}" for name, value in signed(f"{SCOPE}/execute-api", names="host;x-amz-date")
        ]

        def request(body: bytes, length: int) -> bytes:
            lines = ["POST / HTTP/1.1", f"Host: {at}", "Connection: close", f"Content-Length: {length}", *headers, "", ""]
            return "\r\n".join(lines).encode() + body

        answer = await world.ask(request(b"x" * 100_000, 100_000))
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        assert server.bodies == [b"x" * 100_000]
        assert f"Credential={ID}/{SCOPE}/execute-api/aws4_request".encode() in server.seen[0]
        assert KEY.encode() not in server.seen[0]
        answer = await world.ask(request(b"x", 11 * 1024 * 1024))
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert len(server.seen) == 1
