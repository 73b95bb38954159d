"""Forks do not share luck: what the zygote had drawn at random is drawn again in each."""

from __future__ import annotations

import importlib.util

import pytest

from scripts import printed

_SCRIPT = """
import multiprocessing, os, random, tempfile, warnings
from cellblock.launch.init.specialise import reseed
warnings.simplefilter("ignore")  # NumPy has threads
draws = {
    "random": lambda: random.random(),
    "tempfile": lambda: next(tempfile._get_candidate_names()),
    "authkey": lambda: bytes(multiprocessing.current_process().authkey).hex(),
}
if NUMPY:
    import numpy.random
    draws["numpy"] = lambda: numpy.random.random()
def shared(draw, *before):
    draw()
    drawn = []
    for _ in range(2):
        reader, writer = os.pipe()
        if (pid := os.fork()) == 0:
            for act in before: act()
            os.write(writer, str(draw()).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        drawn.append(os.read(reader, 1000))
    return drawn[0] == drawn[1]
for draw in draws.values(): print(shared(draw, reseed))
# Or these could not fail. Python itself sees to `random` in a fork, and to names of temporary files.
for name in {"authkey", "numpy"} & draws.keys(): print(shared(draws[name]))
"""


@pytest.mark.parametrize("numpy", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_new_luck_is_not_shared(numpy: bool) -> None:
    numpy = numpy and importlib.util.find_spec("numpy") is not None
    assert printed(_SCRIPT.replace("NUMPY", str(numpy))) == ["False"] * (3 + numpy) + ["True"] * (1 + numpy)


def test_modules_that_nobody_loaded_stay_unloaded() -> None:
    script = """
import sys
from cellblock.launch.init.specialise import reseed
reseed()
print({"numpy", "torch", "multiprocessing"} & set(sys.modules))
"""
    assert printed(script) == ["set()"]


def test_the_directory_for_temporary_files_is_looked_up_again() -> None:
    script = """
import os, tempfile
from cellblock.launch.init.specialise import reseed
tempfile.gettempdir()
os.environ["TMPDIR"] = "/var/tmp"
reseed()
print(tempfile.gettempdir())
"""
    assert printed(script) == ["/var/tmp"]
