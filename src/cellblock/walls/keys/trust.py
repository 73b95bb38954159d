"""What makes programs in a session trust the session's certificate authority: a bundle of roots, and variables."""

from __future__ import annotations

import os
import re
import ssl
from pathlib import Path

from cellblock.common import config
from cellblock.errors import InvalidInputError
from cellblock.wire.sandbox import Bind, Step

BUNDLE = "/run/cellblock/ca.pem"
"""The roots of the machine and of the session, inside."""
_SYSTEM = "/etc/ssl/certs/ca-certificates.crt"
"""Which programs read that know none of the variables, on Debian and others."""
_CANDIDATES = (_SYSTEM, "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem", "/etc/ssl/ca-bundle.pem")
_MOST = 8 * 1024 * 1024
_MOST_FURTHER = 32 * 1024
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----\n?")

VARIABLES = {
    **dict.fromkeys(
        (
            "SSL_CERT_FILE",
            "REQUESTS_CA_BUNDLE",
            "CURL_CA_BUNDLE",
            "NODE_EXTRA_CA_CERTS",
            "GIT_SSL_CAINFO",
            "PIP_CERT",
            "AWS_CA_BUNDLE",
            "CARGO_HTTP_CAINFO",
            "DENO_CERT",
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
        ),
        BUNDLE,
    ),
    "NODE_USE_ENV_PROXY": "1",
}
"""The variables of a session with secrets."""


def machine_roots() -> str:
    """Return the path of the machine's roots, or of the roots that SSL_CERT_FILE names; empty without any."""
    found = config.environment().get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    return next((path for path in (found, *_CANDIDATES) if path and os.path.isfile(path)), "")


def further_roots(path: str) -> bytes:
    """Return the certificates in a file, and nothing else of it.

    Raises:
        InvalidInputError: It cannot be read, or has no certificate, or an invalid one.
    """
    try:
        found = b"".join(_CERTIFICATE.findall(config.read_file(Path(path).expanduser(), _MOST_FURTHER)))
        if not found:
            raise ValueError("it has no certificate in PEM")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=found.decode("ascii"))
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise InvalidInputError(f"trust: the certificates in {path} cannot be read: {error}") from error
    return found


def make_bundle(path: str, certificates: bytes) -> None:
    """Write the bundle for a session.

    Args:
        path: Its path outside.
        certificates: The certificates to trust in addition to the machine's.
    """
    roots = machine_roots()
    content = config.read_file(Path(roots), _MOST) if roots else b""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644), "wb") as file:
        file.write(content.rstrip(b"\n") + b"\n" + certificates)


def mounts(path: str) -> tuple[Step, ...]:
    """Return the mounts that show a session its bundle, read-only.

    Args:
        path: The bundle outside.
    """
    bundle = Bind(path, BUNDLE, "ro")
    if os.path.islink(_SYSTEM) or not os.path.isfile(_SYSTEM):
        return (bundle,)
    return bundle, Bind(path, _SYSTEM, "ro")
