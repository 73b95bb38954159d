"""Runs pytest for test_mutants.py, each time in a fork of its own and with another copy of the package.

What most of these tests take is the time to import pytest and libraries, so that is done once, here. Nothing of cellblock is
imported: each fork imports its copy. Requests are lines of JSON on standard input; so are answers, on standard output.

It takes in what the tests leave behind, and kills it when they are over.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import select
import signal
import sys
from importlib.metadata import entry_points

import pytest

PR_SET_CHILD_SUBREAPER = 36
LIBRARIES = ("asyncio", "h11", "httpx", "hypothesis", "mcp.client.session", "pydantic", "websockets")


def main() -> None:
    """Serve requests until there are no more."""
    sys.path.pop(0)  # this directory
    sys.dont_write_bytecode = False  # what one run has compiled, the next one loads
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for plugin in entry_points(group="pytest11"):
        plugin.load()
    for library in LIBRARIES:
        importlib.import_module(library)
    for line in sys.stdin:
        request = json.loads(line)
        status = run(request["arguments"], request["environment"], request["output"], request["seconds"])
        print(json.dumps(status), flush=True)


def run(arguments: list[str], environment: dict[str, str], output: str, seconds: float) -> int | None:
    """Run pytest; return its exit status, or None if it was cut off."""
    pid = os.fork()
    if pid == 0:
        os._exit(_pytest(arguments, environment, output))
    ended = select.poll()
    descriptor = os.pidfd_open(pid)
    ended.register(descriptor, select.POLLIN)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if ended.poll(seconds * 1000) else None
    os.close(descriptor)
    _kill_what_is_left()
    return status


def _pytest(arguments: list[str], environment: dict[str, str], output: str) -> int:
    """Run pytest in this process, which has nothing else to do."""
    for number, (path, flags) in enumerate(
        [(os.devnull, os.O_RDONLY), *[(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)] * 2]
    ):
        os.dup2(os.open(path, flags, 0o600), number)
    os.environ.update(environment)
    sys.path.insert(0, environment["PYTHONPATH"])
    status = pytest.main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    return int(status)


def _kill_what_is_left() -> None:
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children") as children:
            for pid in children.read().split():
                os.kill(int(pid), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


if __name__ == "__main__":
    main()
