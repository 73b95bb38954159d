"""What machines do, at random, to a daemon with three durable and ten plain sessions: a program, for `test_conditions`.

Usage: random_machines.py DIRECTORY SECONDS [SEED]. Kills, stops (SIGSTOP) and, for root, full disks hit the daemon, the
custodian, zygotes, inits and workers. At the end, every variable and file is there, or a result or an error has said that it
is lost. Says the number of cells, faults and reported losses; exits with 1 if something is lost without a word.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import cellblock
from cellblock import CellblockError
from cellblock.service.daemon import control
from daemons import own_daemon
from processes import children

DURABLE, PLAIN = 3, 10
CELL = "log.append({n}) if 'log' in globals() else globals().update(log=[{n}])\nopen('log', 'a').write('{n}\\n')\nlog"
WHO = ("daemon", "custodian", "zygote", "init", "worker")
STOPPED = 3.0
"""Seconds for which a process stands still at most."""


class Session:
    """One session, and what must be in it.

    Attributes:
        name: Its name.
        expected: The numbers that its variable must have.
        written: The numbers that its file must have.
        losses: How often a loss was reported.
        silent: Numbers that are missing without a word.
    """

    def __init__(self, name: str, workspace: Path, *, durable: bool) -> None:
        self.name = name
        self._file = workspace / name / "log"
        self._file.parent.mkdir()
        self._options: dict[str, Any] = {"durable": 0.5 if durable else False, "idle_timeout": 0, "approve": "auto"}
        self.expected: list[int] = []
        self.written: set[int] = set()
        self.losses = 0
        self.silent: set[int] = set()
        self._reported = False
        self._said: list[str] = []
        """What was said since the last success."""

    def create(self) -> None:
        cellblock.get_or_create(self.name, working_dir=str(self._file.parent), **self._options)

    def run(self, number: int) -> None:
        """Run a cell, and compare what is there with what must be."""
        try:
            result = cellblock.execute(self.name, CELL.format(n=number), timeout=60)
        except CellblockError as error:  # it may have run
            self._said.append(f"{number}: {type(error).__name__}: {error}")
            return
        self._said.append(f"{number}: {result.status}, {result.recovery}, {(result.text or '')[-300:]!r}")
        if result.recovery in ("restored_earlier", "restarted"):
            self.losses += 1
            self._reported = True
        if result.status != "success":
            return
        self.written.add(number)
        found = set(eval(result.return_value or "[]"))  # a list of numbers
        missing = set(self.expected) - found
        if missing and not self._reported:
            self.silent |= missing
            print(self.name, number, "has lost", sorted(missing), "after", *self._said, sep="\n  ", flush=True)
        self.expected, self._reported = sorted(found), False
        self._said.clear()

    def lost_files(self) -> set[int]:
        """Return the numbers that are missing in its file."""
        return self.written - set(map(int, self._file.read_text().split())) if self.written else set()


class Faults(threading.Thread):
    """Makes faults at random, until it is told to end.

    Attributes:
        count: How many there were.
    """

    def __init__(self, home: Path, draw: random.Random) -> None:
        super().__init__()
        self._home = home
        self._draw = draw
        self.end = threading.Event()
        self.count = 0

    def run(self) -> None:
        while not self.end.wait(self._draw.uniform(0.2, 3.0)):
            with suppress(OSError):
                self._fault()

    def _fault(self) -> None:
        if os.path.ismount(self._home) and self._draw.random() < 0.15:
            self._fill()
        elif (pid := self._victim()) is not None:
            if self._draw.random() < 0.4:
                os.kill(pid, signal.SIGSTOP)
                self.end.wait(self._draw.uniform(0.1, STOPPED))
                os.kill(pid, signal.SIGCONT)
            else:
                os.kill(pid, signal.SIGKILL)
        self.count += 1

    def _victim(self) -> int | None:
        who = self._draw.choices(WHO, (5, 1, 1, 3, 6))[0]
        daemon = self._pid("daemon.lock")
        custodian = self._pid("custodian.lock")
        zygotes = [] if custodian is None else [*children(custodian)]
        inits = [pid for zygote in zygotes for pid in children(zygote)]
        workers = [pid for init in inits for pid in children(init)]
        processes: dict[str, list[int | None]] = {
            "daemon": [daemon],
            "custodian": [custodian],
            "zygote": [*zygotes],
            "init": [*inits],
            "worker": [*workers],
        }
        among = processes[who]
        return self._draw.choice(among) if among else None

    def _pid(self, lock: str) -> int | None:
        with suppress(OSError, ValueError):
            return int((self._home / lock).read_text())
        return None

    def _fill(self) -> None:
        filler = self._home / "filler"
        try:
            with suppress(OSError), open(filler, "wb", buffering=0) as file:
                while True:
                    file.write(bytes(65536))
        finally:
            self.end.wait(self._draw.uniform(0.1, STOPPED))
            filler.unlink()


def main(directory: Path, seconds: float, seed: int) -> int:
    draw = random.Random(seed)
    print("seed", seed, flush=True)
    (directory / "state").mkdir()
    mounted = (
        os.geteuid() == 0
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=96m,mode=700", "none", directory / "state"], check=False
        ).returncode
    )
    try:
        with own_daemon(directory) as home:
            return _play(home, directory, seconds, draw)
    finally:
        if mounted:
            subprocess.run(["umount", "-l", directory / "state"], check=True)


def _play(home: Path, directory: Path, seconds: float, draw: random.Random) -> int:
    sessions = [Session(f"s{n}", directory / "workspace", durable=n < DURABLE) for n in range(DURABLE + PLAIN)]
    for session in sessions:
        session.create()
    faults, number = Faults(home, draw), 0
    faults.start()
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            number += 1
            draw.choice(sessions).run(number)
    finally:
        faults.end.set()
        faults.join()
    for session in sessions:
        for _ in range(30):  # what a fault has left may pass
            number += 1
            session.run(number)
            if number in session.expected:
                break
            time.sleep(1)
    silent = {one.name: sorted(one.silent) for one in sessions if one.silent}
    files = {one.name: sorted(lost) for one in sessions if (lost := one.lost_files())}
    unusable = [one.name for one in sessions if number - 30 * len(sessions) > max(one.expected, default=0)]
    print(f"{number} cells, {faults.count} faults, {sum(one.losses for one in sessions)} losses were reported", flush=True)
    print("silently lost variables", silent, "files", files, "unusable", unusable, flush=True)
    print("problems", (control.status() or {}).get("problems"), flush=True)
    return 1 if silent or files or unusable else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else random.randrange(10**6)))
