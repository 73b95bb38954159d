"""A full disk, for root as for anybody; and one that breaks, for root alone."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


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


def _write(fault: Path) -> None:
    fault.write_text("1")
