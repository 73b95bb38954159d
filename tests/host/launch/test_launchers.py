"""Launchers that fail, or that have too few descriptors, do not fail for long."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from cellblock import Host, LaunchError
from cellblock.host import host_kernels as host_module
from cellblock.host.launch import start
from processes import descriptors


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Let this process open no more descriptors."""
    limits, taken = resource.getrlimit(resource.RLIMIT_NOFILE), []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(descriptors()) + 2, limits[1]))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.slow
@pytest.mark.parametrize("launch", ["zygote", pytest.param("spawn", marks=pytest.mark.slow)])
async def test_a_want_of_descriptors_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launch: Any) -> None:
    monkeypatch.setattr(host_module, "_make_room_for", lambda _kernels, _files: None)
    for warm in (True, False):
        async with aclosing_host(Host(isolate="none", launch=launch)) as host:
            if warm:
                await host.start()
            session, later = host.session(images_dir=tmp_path), host.session(images_dir=tmp_path)
            with no_descriptors(), pytest.raises(LaunchError, match=r"(?i)too many (files open|open files)"):
                await session.start()
            async with later:
                assert (await later.execute("1")).return_value == "1"


@asynccontextmanager
async def aclosing_host(host: Host) -> AsyncIterator[Host]:
    """Close a host that is not started at once."""
    try:
        yield host
    finally:
        await host.close()


@pytest.mark.slow
async def test_a_zygote_that_is_stopped_is_replaced_and_its_kernels_live_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "_PATIENCE", 0.1)
    monkeypatch.setattr("cellblock.host.kernels.kernel._GRACE", 0.05)
    async with Host(isolate="none", start_timeout=20) as host, host.session(images_dir=tmp_path) as kept:
        await kept.execute("x = 1")
        (launcher,) = host.kernels.launchers.in_use.values()
        zygote: int = launcher._process.pid  # type: ignore[attr-defined]
        host.kernels._start_timeout = 0.2
        os.kill(zygote, signal.SIGSTOP)
        try:
            with pytest.raises(LaunchError, match="was not ready within"):
                await host.session(images_dir=tmp_path).start()
            host.kernels._start_timeout = 20
            async with host.session(images_dir=tmp_path) as other:
                assert (await other.execute("1")).return_value == "1"
            assert (await kept.execute("x")).return_value == "1"
        finally:
            os.kill(zygote, signal.SIGCONT)
