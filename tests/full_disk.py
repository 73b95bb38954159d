"""A full disk, for root as for anybody; and one that breaks, for root alone."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import resource
import shutil
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_SHUTDOWN, _WITHOUT_FLUSH = 0x8004587D, 2  # EXT4_IOC_SHUTDOWN and EXT4_GOING_FLAGS_NOLOGFLUSH (fs/ext4/ext4.h)


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Let this process write no file beyond a size, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def full_after(count: int) -> Iterator[None]:
    """Let the disk be full for this process after some writes: no file, folder or link can be made, and none grows."""
    originals = {name: getattr(os, name) for name in ("write", "mkdir", "link", "symlink", "copy_file_range")}
    left = itertools.count(count, -1)

    def of(name: str) -> Callable[..., object]:
        def call(*args: Any, **named: Any) -> object:
            if (name != "write" or stat.S_ISREG(os.fstat(args[0]).st_mode)) and next(left) <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return originals[name](*args, **named)

        return call

    try:
        for name in originals:
            setattr(os, name, of(name))
        yield
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


@contextlib.contextmanager
def small_disk(mounted: Path, size: str) -> Iterator[Callable[[str], None]]:
    """Mount a disk of a size at a directory; yield what gives it another size."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "small", str(mounted)]
    if os.geteuid() or subprocess.run(command, check=False).returncode:
        pytest.skip("only root can mount a disk")

    def resize(size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", mounted], check=True)

    try:
        yield resize
    finally:
        subprocess.run(["umount", mounted], check=True)


@contextlib.contextmanager
def own_disk(mounted: Path, image: Path) -> Iterator[Callable[[], None]]:
    """Mount a disk at a directory; yield what breaks it: Linux makes it read-only then, although its files are open."""
    if os.geteuid() or shutil.which("mkfs.ext4") is None:
        pytest.skip("only root can mount a disk, and mkfs.ext4 makes one")
    image.write_bytes(b"")
    os.truncate(image, 64 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    if subprocess.run(["mount", "-o", "loop,errors=remount-ro", image, mounted], check=False).returncode:
        pytest.skip("no file can be mounted here")
    try:
        device = subprocess.run(["findmnt", "-no", "SOURCE", mounted], check=True, capture_output=True, text=True).stdout
        fault = Path("/sys/fs/ext4", device.strip().rpartition("/")[2], "trigger_fs_error")
        yield lambda: _write(fault)
    finally:
        subprocess.run(["umount", mounted], check=True)


class Disk:
    """A file system of its own, whose power can be cut, for root alone: nothing is on it then that was not flushed.

    Attributes:
        path: Where it is mounted.
    """

    def __init__(self, path: Path, image: Path) -> None:
        if os.geteuid() or shutil.which("mkfs.ext4") is None:
            pytest.skip("only root can mount a disk, and mkfs.ext4 makes one")
        self.path, self._image = path, image
        path.mkdir()
        image.write_bytes(b"")
        os.truncate(image, 256 << 20)
        subprocess.run(["mkfs.ext4", "-q", image], check=True)
        self._mount()

    def _mount(self) -> None:
        # With the default, everything older than 5 s would be on the disk by itself.
        if subprocess.run(["mount", "-o", "loop,commit=1000", self._image, self.path], check=False).returncode:
            pytest.skip("no file can be mounted here")

    def cut(self) -> None:
        """Cut its power. Everything that uses it fails from now on."""
        top = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(top, _SHUTDOWN, struct.pack("I", _WITHOUT_FLUSH))
        finally:
            os.close(top)

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Have it take no writes: whoever writes to it waits, and cannot be killed."""
        subprocess.run(["fsfreeze", "-f", self.path], check=True)
        try:
            yield
        finally:
            subprocess.run(["fsfreeze", "-u", self.path], check=True)

    def again(self) -> None:
        """Mount what has been written to it. Everything that used it has ended."""
        self.remove()
        # A copy: sessions of other tests, which began meanwhile, can still have the old one in their namespaces.
        self._image = Path(shutil.copyfile(self._image, f"{self._image}-again"))
        self._mount()

    def remove(self) -> None:
        """Unmount it."""
        subprocess.run(["umount", "-l", self.path], check=True)


def _write(fault: Path) -> None:
    fault.write_text("1")
