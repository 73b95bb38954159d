"""Downloaded archives, named by their hashes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator
from typing import IO


class Archive:
    """An archive while it arrives.

    Attributes:
        digest: The SHA-256 hash of what has arrived.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> None:
        """Append data."""
        self._file.write(data)
        self._hash.update(data)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


class Archives:
    """A directory of archives. Several processes may use it."""

    def __init__(self, directory: str) -> None:
        """Use a directory, which is created on demand."""
        self._directory = directory

    def path(self, digest: str) -> str:
        """Return the path of an archive, whether or not it exists."""
        return os.path.join(self._directory, digest)

    def metadata(self, digest: str) -> bytes | None:
        """Return the METADATA of an archive that was unpacked before, if any."""
        try:
            with open(self._metadata(digest), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def with_metadata(self) -> frozenset[str]:
        """Return the archives whose METADATA is known."""
        try:
            return frozenset(os.listdir(f"{self._directory}-metadata"))
        except FileNotFoundError:
            return frozenset()

    def add_metadata(self, digest: str, data: bytes) -> None:
        """Keep the METADATA of an archive, so that resolving does not fetch the archive."""
        os.makedirs(os.path.dirname(self._metadata(digest)), 0o700, exist_ok=True)
        new = f"{self._metadata(digest)}.{secrets.token_hex(8)}"
        with open(new, "xb") as file:
            file.write(data)
        os.replace(new, self._metadata(digest))

    def _metadata(self, digest: str) -> str:
        return os.path.join(f"{self._directory}-metadata", digest)

    def has(self, digest: str) -> bool:
        """Return whether an archive exists. This counts as a use of it."""
        try:
            os.utime(self.path(digest))
        except OSError:
            return False
        return True

    @contextlib.contextmanager
    def adding(self, expected: str = "") -> Iterator[Archive]:
        """Add an archive, which counts only if the block ends without an exception.

        Args:
            expected: Its hash. An archive with another hash is discarded.

        Raises:
            ValueError: The hash differs.
        """
        os.makedirs(self._directory, 0o700, exist_ok=True)
        new = os.path.join(self._directory, f".{secrets.token_hex(8)}")
        try:
            with open(new, "xb") as file:
                archive = Archive(file)
                yield archive
            if expected and archive.digest != expected:
                raise ValueError(f"it has the hash {archive.digest} instead of {expected}")
            os.replace(new, self.path(archive.digest))
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new)
