"""The environments that the user trusts: their packages may run in a zygote, which is outside of every sandbox."""

from __future__ import annotations

import contextlib
import os
import stat

from cellblock.common import config


class Trust:
    """The record of trusted environments in the state directory, which no sandboxed session can write.

    It names keys, never names: a name that moves to other packages is not trusted again.
    """

    def __init__(self) -> None:
        """Name the directory. It is created on demand."""
        self._directory = str(config.state_directory() / "trusted-environments")

    def __contains__(self, key: str) -> bool:
        try:
            found = os.lstat(self._path(key))
        except OSError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()

    def add(self, key: str) -> None:
        """Trust an environment. The operation is idempotent."""
        os.makedirs(self._directory, 0o700, exist_ok=True)
        os.close(os.open(self._path(key), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))

    def remove(self, key: str) -> None:
        """Withdraw the trust in an environment. Its zygotes stay until their host ends, and start no more kernels."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(key))

    def _path(self, key: str) -> str:
        return os.path.join(self._directory, os.path.basename(key))
