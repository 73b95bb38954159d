"""The host's side of the process from which its turnkeys are forked, so that they share its memory. It holds no secret."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from cellblock.common import config

_SOURCE = str(Path(__file__).parents[3])
# The path has no directory of the host's environment, and none with names of other modules.
_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import cellblock
del sys.path[0]
from cellblock.walls.keys.turnkey import fork_turnkeys
fork_turnkeys(int(sys.argv[2]))
"""


class Template:
    """The process from which the turnkeys of this process are forked (`turnkey.fork_turnkeys`). It ends with this process."""

    _current: Template | None = None
    _users = 0

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._variables = variables = _variables()
        self._pid = os.getpid()
        with theirs:
            self._process = subprocess.Popen(  # our own program
                [sys.executable, "-I", "-c", _PROGRAM, _SOURCE, str(theirs.fileno())],
                env=variables,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    @classmethod
    def enter(cls) -> None:
        """Begin to use the template, and start it."""
        cls._users += 1
        cls.current()

    @classmethod
    def leave(cls) -> None:
        """Stop using the template. The last user ends it."""
        cls._users -= 1
        if not cls._users and cls._current is not None:
            cls._current.end()
            cls._current = None

    @property
    def usable(self) -> bool:
        """Whether the process lives, belongs to this process, and trusts the roots that the variables name now."""
        return self._process.poll() is None and self._variables == _variables() and self._pid == os.getpid()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @classmethod
    def current(cls) -> Template:
        """Return the template of this process; start one if it is missing, or trusts other roots."""
        now = cls._current
        if now is None or not now.usable:
            if now is not None:
                now.end()
            now = cls._current = cls()
        return now

    def fork(self, control: socket.socket) -> None:
        """Start a turnkey."""
        socket.send_fds(self._control, [b"fork"], [control.fileno()])

    def end(self) -> None:
        """End the process. Turnkeys that it has forked stay."""
        self._control.close()
        if self._pid == os.getpid():  # not a fork of the host
            self._process.kill()
            self._process.wait()


def _variables() -> dict[str, str]:
    """Return the variables that name the roots to trust."""
    return {name: value for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if (value := config.environment().get(name))}
