"""Files with the tokens of this user's kernel gateways, by port."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from cellblock.common import config
from cellblock.service.daemon.place import Place

_MAX_TOKEN = 1000


def keep(port: int, token: str) -> None:
    """Write the token of a gateway for this user's clients.

    Raises:
        DaemonError: The state directory cannot be used, or belongs to another user.
        OSError: The file cannot be written.
    """
    Place().prepare()
    directory = _directory()
    directory.mkdir(mode=0o700, exist_ok=True)
    forget(port)
    file = os.open(directory / str(port), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "w") as stream:
        stream.write(token)


def find(port: int) -> str:
    """Return the token of this user's gateway at a port; empty if none."""
    try:
        file = os.open(_directory() / str(port), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(file) as stream:
        return stream.read(_MAX_TOKEN)


def forget(port: int) -> None:
    """Remove the token of a gateway that has ended."""
    with contextlib.suppress(OSError):
        (_directory() / str(port)).unlink()


def _directory() -> Path:
    return config.state_directory() / "gateways"
