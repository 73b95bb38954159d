"""The certificates that the programs of one session trust, to which its own authority can be added while it runs."""

from __future__ import annotations

import asyncio
import os

from cellblock.common.extras import require_extra
from cellblock.errors import StateError
from cellblock.walls.keys import trust
from cellblock.wire.sandbox import Step


class SessionTrust:
    """The certificates of one session and its branches.

    A sandbox cannot get another mount while it runs. So each session with a network sees a file with the machine's
    certificates. The session's own authority is added to that file, through the same inode, when it is first needed.

    Args:
        roots: Further certificates that the programs and the turnkeys trust, in PEM.

    Attributes:
        roots: As given.
        certificate: The certificate of the authority, in PEM; empty until `add`.
        mounted: Whether the sandbox sees the file.
    """

    def __init__(self, roots: bytes = b"") -> None:
        self.roots = roots
        self.certificate = b""
        self.mounted = True
        self._open: list[int] = []

    @property
    def environment(self) -> dict[str, str]:
        """The variables that name the file."""
        return trust.VARIABLES if self.mounted else {}

    def mounts(self, path: str) -> tuple[Step, ...]:
        """Return the mounts that show the file to a sandbox, read-only."""
        return trust.mounts(path) if self.mounted else ()

    def make(self, path: str) -> None:
        """Make the file of a sandbox, unless it exists.

        Args:
            path: Its path outside.
        """
        if self.mounted and not os.path.lexists(path):
            trust.make_bundle(path, self.roots + self.certificate)
            self.take(path)

    def take(self, path: str) -> None:
        """Prepare to add the authority to a file, if it exists. Its session may end, and its branches still see it."""
        if not self.certificate and os.path.lexists(path):
            flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            self._open.append(os.open(path, flags))

    async def add(self, seed: bytes) -> bool:
        """Add the authority to all files. Programs and clients that start from now on trust it. Idempotent.

        Args:
            seed: The session's seed.

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
