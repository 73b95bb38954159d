"""The devices of one session: a GPU, or a part of it, belongs to one session of the user at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from cellblock.common import config
from cellblock.errors import ConflictError, StoreError
from cellblock.host.files.steps import in_thread

if TYPE_CHECKING:
    from cellblock.host.launch.kernel_spec import KernelSpec
    from cellblock.host.place import Places

_LOCK = struct.Struct("hhqqi4x")


class SessionDevices:
    """The devices of one session, with their locks.

    These are locks of an open file, not of a process, so that a custodian can hold them until the next host.
    """

    def __init__(self, path: str, devices: tuple[str, ...], places: Places) -> None:
        """Take over the locks of an earlier host, if it had any.

        Args:
            path: A path of the session's own, the name by which `places` knows the locks.
            devices: Names of devices (`Policy.devices`).
            places: Preserves them for the next process.
        """
        self._path, self._devices, self._places = path, devices, places
        self._held = places.take_place(path) if devices else None

    async def give(self, wanted: KernelSpec) -> KernelSpec:
        """Return the specification of a fresh kernel, with the devices, and lock them first.

        Raises:
            ConflictError: Another session uses one.
            StoreError: The state directory cannot be used.
            UnsupportedError: This machine has no such device.
        """
        if not self._devices:
            return wanted
        from cellblock.walls.sandbox.gpus import find_gpus  # rarely used

        policy = wanted.policy
        # The driver can take long to answer.
        gpus = await in_thread(find_gpus, self._devices, policy.resources.tmp, everything=policy.filesystem.everything)
        self.lock(gpus.spans)
        return replace(wanted, setup=replace(wanted.setup, mounts=(*wanted.setup.mounts, *gpus.steps)))

    def lock(self, spans: Mapping[str, Iterable[tuple[int, int]]]) -> None:
        """Lock the devices, unless they are locked.

        Args:
            spans: As for `SessionGpus`.

        Raises:
            ConflictError, StoreError: As for `give`.
        """
        if self._held is not None:
            return
        file = config.state_directory() / "gpus.lock"
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            held = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StoreError(f"{file}, where cellblock locks GPUs, cannot be opened: {error.strerror}") from error
        self._held = held
        try:
            for name, of_name in spans.items():
                for first, length in of_name:
                    self._lock(held, name, first, length)
        except BaseException:
            self._held = None
            os.close(held)
            raise
        self._places.place_made(self._path, held)

    def _lock(self, held: int, name: str, first: int, length: int) -> None:
        try:
            fcntl.fcntl(held, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, first, length, 0))
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise StoreError(f"{name} cannot be locked: {error.strerror}") from error
            raise ConflictError(f"{name} is used by another session: close that session, or wait until it ends") from None

    def release(self) -> None:
        """Release the devices. Idempotent."""
        if self._held is not None:
            held, self._held = self._held, None
            self._places.place_gone(self._path)
            os.close(held)
