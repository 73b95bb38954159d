"""A chain of hosts on one custodian, each killed at another point of a cell. Run as a program, for `test_keeping`.

Usage: killed_hosts.py STATE WORKSPACE ISOLATION FIRST LAST STEP [early]. Each host is a fork of this process: it goes on with
the session of the host before, says what became of the last cell, and begins the next one. It is killed at its own point of
the calls by which bytes and records move, between FIRST and LAST. Says a line of JSON for each host. With ``early``, the first
one is killed in a cell and all the others while they take over from the one before, so that the last one has what the first
one has begun.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import sys

from cellblock import Host
from cellblock.host.kernels.kernel import Kernel
from cellblock.host.session import Session
from cellblock.launch.custody import custodian_client
from cellblock.launch.custody.custodian_client import Custodian
from cellblock.model import CodeExecutionResult
from fuses import Fuse, forked

CODE = """
import os
n = globals().get('n', 0) + 1
print('begin', n)
os.write(1, b'pipe %d\\n' % n)
print('then', n)
display({'text/html': f'<b>{n}</b>'}, raw=True)
print(input('?') if n % 2 else 'x' * 5000)
n
"""
POINTS = ("splice", "sendfile", "pwrite", "pread", "lseek")


def told(result: CodeExecutionResult) -> list[object]:
    """Return what a result has to say that does not differ from one run to the next."""
    return [result.status, [(item.kind, item.name, item.text) for item in result.outputs], result.execution_count]


async def host(state: str, workspace: str, isolate: str, point: int, report: int, *, early: bool) -> None:
    def say(**what: object) -> None:
        os.write(report, json.dumps({"point": point, **what}).encode() + b"\n")

    async def answer(prompt: str) -> str:
        return "line"

    held_by = Custodian.connect(state)
    fuse = Fuse(point, *((os, name) for name in POINTS), (custodian_client, "send"), (Kernel, "_take"))
    fuse.armed = early and point > 0 and bool(held_by.entries)
    host = Host(isolate=isolate, custodian=held_by)  # type: ignore[arg-type]
    remains = await host.adopt()
    session: Session = host.session(
        working_dir=workspace, images_dir=f"{state}/images", label="s", remains=remains[0] if remains else None
    )
    await session.start(on_input=answer)
    if fuse.armed:
        say(passed=fuse.passed)
        os.kill(os.getpid(), signal.SIGKILL)
    if remains:
        what: dict[str, object] = {"adopted": session.succession.adopted, "tag": session.cells.resumed}
        if session.cells.resumed is not None:
            async for event in session.cells.resume():
                if isinstance(event, CodeExecutionResult):
                    what["result"] = told(event)
        say(**what)
    if not point:
        fuse.armed = False
        await host.close()
        held_by.end()
        return
    fuse.armed = True
    if early:
        fuse.point = 40
    await session.execute(CODE, on_input=answer, tag=str(point))
    fuse.armed = False
    say(passed=fuse.passed)
    os.kill(os.getpid(), signal.SIGKILL)


def main(state: str, workspace: str, isolate: str, first: str, last: str, step: str, early: str = "") -> None:
    for point in (*range(int(first), int(last), int(step)), 0):
        run = functools.partial(host, state, workspace, isolate, point, 1, early=bool(early))
        pid = forked(lambda: asyncio.run(run()))  # noqa: B023  # called at once
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status) != (point > 0):
            sys.exit(f"the host of point {point} ended by itself")


if __name__ == "__main__":
    main(*sys.argv[1:])
