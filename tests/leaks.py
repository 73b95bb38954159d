"""What a test leaves behind: processes, descriptors, temporary files, and callbacks that keep the loop busy."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from cellblock import Host, Session
from cellblock.launch.zygote import boot
from processes import command_line, descriptors, eventually, tree

BOOT = boot.__file__


class Watch:
    """Compares what there is before a test with what there is after it.

    Most tests start nothing, so that the loop turns only if something is different at first sight.

    Attributes:
        loop: The loop of all tests.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._tree: dict[int, set[int]] | None = None  # not known yet

    @contextmanager
    def test(self, shared: Sequence[Host]) -> Iterator[None]:
        """Fail a test after which something is left.

        What outlives tests are the shared zygotes, each with the one kernel that it forks ahead, so it is the number of
        processes that must not have grown.
        """
        known = self._tree
        before = self._warm_processes()
        if before is None or self._tree != known:
            before = self.loop.run_until_complete(self._warm_up(shared))
        files, opened = _temporary_files(), len(_opened())
        ready = self.loop._ready  # type: ignore[attr-defined]  # what the loop calls in its next turn
        yield
        if ready or len(tree(os.getpid())) >= len(before) or len(_opened()) > opened:
            self.loop.run_until_complete(_settle(before, opened, ready))
        assert not {name for name in _temporary_files() - files if not name.startswith("pytest-of-")}

    async def _warm_up(self, shared: Sequence[Host]) -> set[int]:
        for host in shared:
            await host.start()  # the test before may have killed its zygote
        sessions = cast("list[Session]", [session for host in shared for session in host._sessions])
        # A kernel that the test before has killed may be being replaced.
        await eventually(lambda: not any(session._kernels._starting for session in sessions))
        warm: set[int] = await eventually(self._warm_processes)
        return warm

    def _warm_processes(self) -> set[int] | None:
        """Return this process and all below it, if each zygote has the kernel that it forks ahead."""
        self._tree = found = tree(os.getpid())
        booted = {pid for pid in found if _is_booted(pid)}
        zygotes = booted - {child for pid in booted for child in found[pid]}  # an init has the command line of its zygote
        for zygote in zygotes:
            if not (found[zygote] and all(found.get(init) for init in found[zygote]) and _has_spare(zygote)):
                return None
        if tree(os.getpid()) != found:  # the spare is newer
            return None
        return {os.getpid(), *_without_services(found)}


async def _settle(before: set[int], opened: int, ready: Sequence[object]) -> None:
    try:
        await eventually(lambda: len(_watched()) < len(before))
    except AssertionError:
        pytest.fail(f"processes are left: {[command_line(pid) for pid in _watched() - before]}")
    try:
        await eventually(lambda: len(_opened()) <= opened)
    except AssertionError:
        pytest.fail(f"descriptors are left: there were {opened}, there are {_opened()}")
    try:
        await eventually(lambda: not ready)
    except AssertionError:
        pytest.fail(f"callbacks that call themselves are left, and keep the loop busy for ever: {ready}")


def _is_booted(pid: int) -> bool:
    return command_line(pid).split(" ")[1:2] == [BOOT]


def _has_spare(zygote: int) -> bool:
    """Tell whether a zygote has forked the next kernel: then it polls without a time limit.

    The number of its inits does not tell: one can be that of a session of several tests, which has just taken the spare.
    """
    try:
        system_call = Path(f"/proc/{zygote}/syscall").read_text().split()  # or "running"
    except OSError:
        return True  # this system does not say it
    if len(system_call) < 4:
        return False
    number, limit = system_call[0], int(system_call[3], 16)
    return limit & 0xFFFFFFFF == 0xFFFFFFFF if number == "7" else number in ("271", "73") and limit == 0  # poll, or ppoll


def _without_services(pids: Iterable[int]) -> set[int]:
    """Leave out the services of browsers, which are shared as hosts are: they start them when they like."""
    return {pid for pid in pids if " --type=utility " not in command_line(pid)}


def _watched() -> set[int]:
    return _without_services(tree(os.getpid()))


def _opened() -> list[str]:
    """Return what is open. A host that has made a checkpoint of files has one place for all of them, until it is closed."""
    return [target for target in descriptors().values() if "/state/snapshots/" not in target]


def _temporary_files() -> set[str]:
    return {*os.listdir(tempfile.gettempdir())}
