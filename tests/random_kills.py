"""Hosts on one custodian, each killed at a random moment. Run as a program, for `test_keeping`.

Usage: random_kills.py STATE WORKSPACE ISOLATION KILLS SEED. Each host goes on with all sessions of the host before, and then
runs cells, resets, makes and closes sessions until it is killed. Each cell writes its tag to a file of the workspace. Says a
line of JSON for each result, with the tag and what was printed.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import random
import signal
import sys
import tempfile
import time

from cellblock import Host
from cellblock.host.session import Session
from cellblock.launch.custody.custodian_client import Custodian
from cellblock.model import CodeExecutionResult
from fuses import forked

CODE = """
with open('ran', 'a') as file:
    file.write({tag!r} + '\\n')
import os, time
for i in range(5):
    print({tag!r}, i)
    os.write(1, b'%d\\n' % i)
    time.sleep(0.002)
"""
SESSIONS = 3


def say(result: CodeExecutionResult, tag: str) -> None:
    os.write(
        1, json.dumps({"tag": tag, "status": result.status, "output": sorted(result.output.split("\n"))}).encode() + b"\n"
    )


async def use(host: Host, session: Session, workspace: str, name: str) -> None:
    """Use a session, and replace it by others, until somebody kills this process."""
    if session.cells.resumed is not None:
        tag = session.cells.resumed
        async for event in session.cells.resume():
            if isinstance(event, CodeExecutionResult):
                say(event, tag)
    number = 0
    while True:
        number += 1
        tag = f"{name}-{os.getpid()}-{number}"
        say(await session.execute(CODE.format(tag=tag), tag=tag), tag)
        if number % 7 == 0:
            await session.reset()
        if number % 10 == 0:
            await session.close()
            session = make(host, workspace, name)
            await session.start()


def make(host: Host, workspace: str, name: str) -> Session:
    return host.session(working_dir=workspace, images_dir="/nowhere", label=name)


async def main(state: str, workspace: str, isolate: str, begun: int, *, last: bool) -> None:
    custodian = Custodian.connect(state)
    host = Host(isolate=isolate, custodian=custodian)  # type: ignore[arg-type]
    sessions = {}
    for left in await host.adopt():
        if left.label in sessions:  # it was about to be closed
            await host.discard(left)
            continue
        session = sessions[left.label] = host.session(
            working_dir=workspace, images_dir="/nowhere", label=left.label, remains=left
        )
        await session.start()
    if last:
        for session in sessions.values():
            if (tag := session.cells.resumed) is not None:
                say([event async for event in session.cells.resume()][-1], tag)  # type: ignore[arg-type]
            assert (await session.execute("1")).ok
        await host.close()
        custodian.end()
        return
    for number in range(SESSIONS):
        if str(number) not in sessions:
            sessions[str(number)] = make(host, workspace, str(number))
            await sessions[str(number)].start()
    os.write(begun, b"x")
    await asyncio.gather(*(use(host, session, workspace, name) for name, session in sessions.items()))


def run(state: str, workspace: str, isolate: str, kills: str, seed: str) -> None:
    chance = random.Random(int(seed))
    tempfile.gettempdir()  # writes a file to find out, which a host would leave that is killed at that moment
    for number in range(int(kills) + 1):
        last = number == int(kills)
        reader, writer = os.pipe()
        host = functools.partial(main, state, workspace, isolate, writer, last=last)
        pid = forked(lambda: asyncio.run(host()))  # noqa: B023  # called at once
        os.close(writer)
        if not last:
            if number == 0 or chance.random() < 0.7:  # most of them use their sessions, the others take them over
                os.read(reader, 1)
            time.sleep(chance.uniform(0, 0.1))
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        os.close(reader)
        if os.WIFEXITED(status) and (os.WEXITSTATUS(status) or not last):
            sys.exit(f"host {number} ended by itself")


if __name__ == "__main__":
    run(*sys.argv[1:])
