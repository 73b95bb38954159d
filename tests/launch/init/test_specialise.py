"""Forks do not share luck: what the zygote had drawn at random is drawn again in each."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SCRIPT = """
import os, random, sys, tempfile
from cellblock.launch.init.specialise import reseed
DRAW = {
    "random": lambda: random.random(),
    "tempfile": lambda: next(tempfile._get_candidate_names()),
    "authkey": lambda: bytes(multiprocessing.current_process().authkey).hex(),
    "numpy": lambda: numpy.random.random(),
}
what, fresh = sys.argv[1], sys.argv[2] == "fresh"
if what == "authkey": import multiprocessing
if what == "numpy": import numpy.random
DRAW[what]()
drawn = []
for _ in range(2):
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        if fresh: reseed()
        os.write(writer, str(DRAW[what]()).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    drawn.append(os.read(reader, 1000))
print(drawn[0] == drawn[1])
"""


def printed(script: str, *arguments: str) -> str:
    """Return what a script prints."""
    command = [sys.executable, "-W", "ignore", "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def forks_share(what: str, fresh: str) -> bool:
    """Whether two forks of a process draw the same."""
    return printed(_SCRIPT, what, fresh) == "True\n"


@pytest.mark.parametrize("what", ["random", "tempfile", "authkey", pytest.param("numpy", marks=pytest.mark.slow)])
def test_new_luck_is_not_shared(what: str) -> None:
    if what == "numpy":
        pytest.importorskip("numpy")
    assert not forks_share(what, "fresh")


@pytest.mark.parametrize("what", ["authkey", pytest.param("numpy", marks=pytest.mark.slow)])
def test_old_luck_would_be_shared(what: str) -> None:
    """Or the test above could not fail. (Python itself sees to `random` in a fork, and to names of temporary files.)"""
    if what == "numpy":
        pytest.importorskip("numpy")
    assert forks_share(what, "stale")


def test_modules_that_nobody_loaded_stay_unloaded() -> None:
    script = """
import sys
from cellblock.launch.init.specialise import reseed
reseed()
print({"numpy", "torch", "multiprocessing"} & set(sys.modules))
"""
    assert printed(script) == "set()\n"


def test_the_directory_for_temporary_files_is_looked_up_again() -> None:
    script = """
import os, tempfile
from cellblock.launch.init.specialise import reseed
tempfile.gettempdir()
os.environ["TMPDIR"] = "/var/tmp"
reseed()
print(tempfile.gettempdir())
"""
    assert printed(script) == "/var/tmp\n"
