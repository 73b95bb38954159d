"""The packages that a session's code installs: one directory for each installation, so that earlier states keep theirs."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from typing import TYPE_CHECKING

from cellblock.host.kernels.session_state import unused_state

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cellblock.host.environments.store import Wheel

CURRENT = "current"
"""The link to the last installation of the current state, for programs and fresh kernels."""

_RECORD = ".installations"


class PackageLayers:
    """The installations of one session, numbered from 1. Each directory has all packages that the code sees.

    A kernel has the directory of its last installation on its path. Undo, redo and branches change no files: the path is a
    part of their state. Programs and fresh kernels follow the link `CURRENT`.
    """

    def __init__(self, *, recorded: bool) -> None:
        """Start without installations.

        Args:
            recorded: Whether a later host can believe what is in the directory, because the session cannot write there.
        """
        self._recorded = recorded
        self._wheels: dict[int, list[Wheel]] = {}
        self._states: list[tuple[int, int]] = []
        """From which state on which installation counts, oldest first."""

    def load(self, place: str) -> None:
        """Read what an earlier host has recorded."""
        from cellblock.host.environments.store import Wheel

        if self._wheels or not self._recorded:
            return
        with contextlib.suppress(OSError), open(os.path.join(place, _RECORD), encoding="utf-8") as file:
            data = json.load(file)
            self._wheels = {int(number): [Wheel(*one) for one in wheels] for number, wheels in data["wheels"].items()}
            self._states = [(state, number) for state, number in data["states"]]

    def wheels(self, number: int) -> list[Wheel]:
        """Return the packages of an installation; none for 0."""
        return self._wheels.get(number, [])

    def __contains__(self, number: int) -> bool:
        return number == 0 or number in self._wheels

    def new_directory(self, place: str) -> str:
        """Create the directory of the next installation."""
        path = os.path.join(place, str(len(self._wheels) + 1))
        shutil.rmtree(path, ignore_errors=True)  # of a host that was killed meanwhile
        os.mkdir(path, 0o755)
        return path

    def add(self, place: str, wheels: Sequence[Wheel], state: int) -> int:
        """Record the installation in the new directory, which counts from a state on. Return its number."""
        number = len(self._wheels) + 1
        self._wheels[number] = [*wheels]
        self._begin(place, state, number)
        return number

    def go_to(self, place: str, state: int) -> None:
        """Record that the session returns to a state, with the packages of that state."""
        self.load(place)
        number = next((number for since, number in reversed(self._states) if since <= state), 0)
        if self._states and number != self._states[-1][1]:
            self._begin(place, unused_state(), number)

    def _begin(self, place: str, state: int, number: int) -> None:
        self._states.append((state, number))
        if self._recorded:
            wheels = {str(number): [list(one) for one in wheels] for number, wheels in self._wheels.items()}
            self._replace(place, _RECORD, lambda new: _write(new, json.dumps({"wheels": wheels, "states": self._states})))
        self._replace(place, CURRENT, lambda new: os.symlink(str(number), new))

    @staticmethod
    def _replace(place: str, name: str, make: Callable[[str], None]) -> None:
        new = os.path.join(place, f".{secrets.token_hex(8)}")
        try:
            make(new)
            os.replace(new, os.path.join(place, name))
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new)


def _write(path: str, text: str) -> None:
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
