"""Python programs that run in forks of a process that has imported what they need: starting one anew takes 0.2 s longer.

Run as a program, with the names of modules, this is that process. It reads a line of JSON for each program, and writes one
when the program has ended.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any

from fuses import forked

_SECONDS = 60


class WarmPython:
    """A process that has imported some modules, and forks for each program."""

    def __init__(self, *modules: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *modules], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, program: str) -> subprocess.CompletedProcess[str]:
        """Run a program in this process's environment; return what it has printed, and how it ended: within a minute."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([program, {**os.environ}]), file=self._process.stdin, flush=True)
        code, output = json.loads(self._process.stdout.readline())
        return subprocess.CompletedProcess(program, code, output, output)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def _run(program: str, environment: dict[str, str], output: int) -> None:
    signal.alarm(_SECONDS)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, target in enumerate((null, output, output)):
        os.dup2(target, number)
    os.environ.clear()
    os.environ.update(environment)
    exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})  # a program of a test
    sys.stdout.flush()


def main(modules: list[str]) -> None:
    """Serve until standard input ends."""
    for name in modules:
        importlib.import_module(name)
    for line in sys.stdin:
        program, environment = json.loads(line)
        with tempfile.TemporaryFile() as output:
            pid = forked(lambda: _run(program, environment, output.fileno()))  # noqa: B023  # called at once
            _, status = os.waitpid(pid, 0)
            output.seek(0)
            said: list[Any] = [os.waitstatus_to_exitcode(status), output.read().decode(errors="replace")]
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
