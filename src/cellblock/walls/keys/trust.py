"""The certificates that the programs of a session trust, its own authority among them: a bundle of roots, and variables."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from pathlib import Path

from cellblock.common import config
from cellblock.common.extras import require_extra
from cellblock.errors import InvalidInputError, StateError
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


def mounts(path: str) -> tuple[Step, ...]:
    """Return the mounts that show a session its bundle, read-only."""
    bundle = Bind(path, BUNDLE, "ro")
    if os.path.islink(_SYSTEM) or not os.path.isfile(_SYSTEM):
        return (bundle,)
    return bundle, Bind(path, _SYSTEM, "ro")


class SessionTrust:
    """The certificates of one session and its branches.

    A sandbox cannot get another mount while it runs. So each session with a network sees a file with the machine's
    certificates. The session's own authority is added to that file, through the same inode, when it is first needed.

    Args:
        roots: Further certificates that the programs and the turnkeys trust, in PEM.
        needed: Whether the file is needed even if the machine has no certificates.

    Attributes:
        roots: As given.
        certificate: The certificate of the authority, in PEM; empty until `add`.
        mounted: Whether the sandbox sees the file.
    """

    def __init__(self, roots: bytes, *, needed: bool) -> None:
        self.roots = roots
        self.certificate = b""
        self.mounted = needed or bool(machine_roots())
        self._open: list[int] = []

    @property
    def environment(self) -> dict[str, str]:
        """The variables that name the file."""
        return VARIABLES if self.mounted else {}

    def mounts(self, path: str) -> tuple[Step, ...]:
        """Return the mounts that show the file to a sandbox, read-only."""
        return mounts(path) if self.mounted else ()

    def make(self, path: str) -> None:
        """Make the file of a sandbox, unless it exists."""
        if self.mounted and not os.path.lexists(path):
            machine = machine_roots()
            content = config.read_file(Path(machine), _MOST) if machine else b""
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644), "wb") as file:
                file.write(content.rstrip(b"\n") + b"\n" + self.roots + self.certificate)
            self.take(path)

    def take(self, path: str) -> None:
        """Prepare to add the authority to a file, if it exists. Its session may end, and its branches still see it."""
        if not self.certificate and os.path.lexists(path):
            flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            self._open.append(os.open(path, flags))

    async def add(self, seed: bytes) -> bool:
        """Add the authority to all files. Programs and clients that start from now on trust it. Idempotent.

        Returns:
            Whether it was added now.

        Raises:
            StateError: The sandbox does not see the file.
            UnsupportedError: The extra ``keys`` is not installed.
        """
        require_extra("keys", "secrets and request lines")
        if not self.mounted:
            raise StateError(
                "the session was made without certificates, because this machine had none (ca-certificates), or by an earlier "
                "version of cellblock. Make a new session with these request lines (http=, --allow-http)"
            )
        if self.certificate:
            return False
        certificate = await asyncio.to_thread(_certificate, seed)  # loads cryptography, which takes long
        if not self.certificate:
            self.certificate = certificate
            for descriptor in self._open:
                os.write(descriptor, certificate)
            self.close()
        return True

    def close(self) -> None:
        """Close the files."""
        while self._open:
            os.close(self._open.pop())


def _certificate(seed: bytes) -> bytes:
    from cellblock.walls.keys.authority import authority_certificate

    return authority_certificate(seed)
