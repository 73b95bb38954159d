"""Programs with a host that kills itself, and the hosts that continue their sessions."""

from __future__ import annotations

import signal
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from cellblock.common import config
from cellblock.host import Host
from cellblock.host.session import Session
from cellblock.host.survival.remains import SessionRemains
from next_hosts import next_host
from warm_python import WarmPython

HOST = """
import asyncio, os, signal, sys
from pathlib import Path
from cellblock.launch.custody.custodian_client import Custodian
from cellblock.host import Host
from cellblock.host.checkpoints.automatic import AutomaticCheckpoints
from cellblock.host.checkpoints.checkpoints import Checkpoints
from cellblock.host.checkpoints.checkpoint import Resuming
from cellblock.host.checkpoints.workspace_snapshots import CheckpointFiles
from cellblock.host.kernels.family import Family
from cellblock.host.kernels.kernel import Kernel
from cellblock.host.kernels.kernel_slot import KernelSlot
from cellblock.host.snapshots import restore
from cellblock.host.survival.state_log import StateLog

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def dying(call, after):
    "Return what dies before or after a call."
    def now(*given, **named):
        if after:
            call(*given, **named)
        die()
    async def then(*given, **named):
        if after:
            await call(*given, **named)
        die()
    return then if asyncio.iscoroutinefunction(call) else now

async def settled(session):
    "Wait until the present state is kept, with its files."
    automatic = session._checkpoints.automatic
    while automatic._task is None or not automatic._task.done():
        await asyncio.sleep(0.001)
    await asyncio.sleep(0)

async def until(session, text, tag="tag", **options):
    "Run a cell until it has said something, and die."
    said = ""
    async for event in session.stream({code!r}, tag=tag, **options):
        said += getattr(event, "text", None) or ""
        if text in said:
            die()
        said = said[-1000:]
    sys.exit("it ended before: " + said)

async def main():
    custodian = Custodian.connect({state!r})
    host = Host(isolate={isolate!r}, custodian=custodian)
    left = await host.adopt()
    session = host.session(
        working_dir={workspace!r},
        images_dir={state!r} + "/images",
        label="label",
        remains=left[0] if left else None,
        **{options!r},
    )
    await session.start()
{body}
    die()

asyncio.run(main())
"""


class Killed:
    """A custodian's directory, and hosts that are killed."""

    def __init__(self, directory: Path, python: WarmPython, isolate: str) -> None:
        self.python = python
        self.isolate = isolate
        self.state = directory / "state"
        self.workspace = directory / "workspace"
        self.state.mkdir(0o700)
        self.workspace.mkdir()

    def run(self, body: str, code: str = "", **options: Any) -> None:
        """Run a host that continues the session, if there is one, until it kills itself."""
        program = HOST.format(
            state=str(self.state),
            workspace=str(self.workspace),
            isolate=self.isolate,
            code=code,
            options=options,
            body=textwrap.indent(textwrap.dedent(body), "    "),
        )
        ran = self.python.run(program)
        assert ran.returncode == -signal.SIGKILL, ran.stdout

    @asynccontextmanager
    async def host(self) -> AsyncIterator[tuple[Host, list[SessionRemains]]]:
        """Run the next host; afterwards, nothing is left."""
        async with next_host(self.state, self.isolate) as found:
            yield found
        assert not [*(config.state_directory() / "snapshots").glob("*")]

    def remake(
        self, host: Host, remains: SessionRemains | None = None, workspace: Literal["clone", "dirty-clone"] | None = None
    ) -> Session:
        """Return the session on the next host."""
        return host.session(
            working_dir=self.workspace,
            images_dir=self.state / "images",
            label="label",
            remains=remains,
            workspace=workspace,
        )

    @asynccontextmanager
    async def session(
        self, workspace: Literal["clone", "dirty-clone"] | None = None, **options: Any
    ) -> AsyncIterator[Session]:
        """Continue the session on the next host."""
        async with self.host() as (host, remains):
            (left,) = remains
            assert left.label == "label"
            session = self.remake(host, left, workspace)
            await session.start(**options)
            yield session

    def write(self, name: str, text: str) -> None:
        """Write a file in the workspace, as a person does."""
        (self.workspace / name).write_text(text)

    def read(self) -> dict[str, str]:
        """Return the content of the files in the workspace."""
        return {path.name: path.read_text() for path in self.workspace.iterdir() if path.is_file()}
