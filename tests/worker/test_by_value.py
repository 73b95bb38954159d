"""Functions and classes of cells in processes that are not forked."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock import Session
from checkpoint_sessions import value
from suite import first_quick

CLASSES = """
import enum
from dataclasses import dataclass
from functools import partial, wraps

class Trouble(Exception):
    pass

class Colour(enum.Enum):
    RED = 1

@dataclass
class Point:
    x: int
    def right(self):
        return Point(helper(self.x))

def helper(x):
    return x + step

def traced(function):
    @wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper

@traced
def move(point):
    if point.x < 0:
        raise Trouble(point)
    return point.right(), Colour.RED

def factorial(n):
    return 1 if n < 2 else n * factorial(n - 1)

def adder(n):
    def add(x):
        return x + n
    return add

step, model, seen = 1, None, []

def prepare(given):
    global model
    model = given
    seen.append(given)

def use(x):
    return x + model, seen
"""


async def test_they_reach_a_spawned_process_and_what_it_returns_is_of_the_sessions_classes(session: Session) -> None:
    assert (await session.execute(CLASSES)).ok
    code = """
if __name__ == "__main__":
    import multiprocessing
    pool = multiprocessing.get_context("spawn").Pool(1, prepare, (5,))
    moved, colour = pool.apply(move, (Point(1),))
    try:
        pool.apply(move, (Point(-1),))
    except Trouble as error:
        trouble = error.args
said = moved, type(moved) is Point, colour is Colour.RED, trouble, pool.map(use, [1]), pool.map(factorial, [5])
(*said, pool.map(adder(2), [1]), pool.apply(partial(lambda a, b: a - b, 1), (2,)), pool.apply(Point(1).right), model)
"""
    said = "(Point(x=2), True, True, (Point(x=-1),), [(6, [5])], [120], [3], -1, Point(x=2), None)"
    assert "".join((await value(session, code)).split()) == "".join(said.split())
    # A later cell, with the same process: it has what is new, and keeps what its own functions have set.
    assert (await session.execute("step = 10\ndef factorial(n): return 'another'")).ok
    code = (
        "said = pool.map(use, [1]), pool.map(factorial, [5]), pool.apply(Point(1).right)\npool.terminate(); pool.join(); said"
    )
    assert await value(session, code) == "([(6, [5])], ['another'], Point(x=11))"
    assert await value(session, "[name for name in globals() if 'cellblock' in name]") == "[]"


@pytest.mark.parametrize("method", first_quick(["spawn", "forkserver", "fork"]))
async def test_all_ways_to_start_processes_run_them(session: Session, method: str) -> None:
    assert (await session.execute(CLASSES)).ok
    code = f"""
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, set_start_method
with ProcessPoolExecutor(2, mp_context=get_context({method!r})) as executor:
    points = [*executor.map(move, [Point(1), Point(2)])]
set_start_method({method!r}, force=True)
from multiprocessing import Process, Queue
tasks, done = Queue(), Queue()
tasks.put(Point(3))  # before there is a process
def work(tasks, done):
    done.put(tasks.get().right())
process = Process(target=work, args=(tasks, done))
process.start()
last = done.get()
process.join()
points, last, type(last) is Point
"""
    said = "([(Point(x=2), <Colour.RED: 1>), (Point(x=3), <Colour.RED: 1>)], Point(x=4), True)"
    assert "".join((await value(session, code)).split()) == "".join(said.split())


async def test_a_forked_process_gets_names_and_no_copies_of_variables(session: Session) -> None:
    code = "import multiprocessing\nfrom multiprocessing.reduction import ForkingPickler\nlarge = bytes(100_000)\n"
    code += "def use(): return large\nlengths = []\nfor method in ('fork', 'spawn'):\n"
    code += "    multiprocessing.set_start_method(method, force=True)\n    lengths.append(len(ForkingPickler.dumps(use)))\n"
    code += "lengths[0] < 100, lengths[1] > 100_000"
    assert await value(session, code) == "(True, True)"


async def test_what_the_session_reads_itself_changes_nothing_in_it(session: Session) -> None:
    assert (await session.execute(CLASSES)).ok
    code = "import multiprocessing, pickle\nfrom multiprocessing.reduction import ForkingPickler\n"
    code += "multiprocessing.set_start_method('spawn')\nbefore = {'Point': Point, 'use': use, 'right': Point.right}\n"
    code += "read = pickle.loads(ForkingPickler.dumps([Point, use]))\n"
    code += "read[0] is Point, read[1] is use, before == {'Point': Point, 'use': use, 'right': Point.right}"
    assert await value(session, code) == "(True, False, True)"


@pytest.mark.slow
async def test_without_cloudpickle_the_error_says_what_to_do(session: Session) -> None:
    code = "import sys\nsys.path[:] = [path for path in sys.path if 'site-packages' not in path]\n"
    code += "import multiprocessing\nspawn = multiprocessing.get_context('spawn')\n"
    code += "def work(): pass\nspawn.Process(target=work).start()"
    error = (await session.execute(code)).error
    assert error is not None
    assert error.ename == "PicklingError"
    assert "%pip install cloudpickle" in error.evalue
    assert (await session.execute("process = spawn.Process(target=abs, args=(1,)); process.start(); process.join()")).ok
    assert await value(session, "process.exitcode") == "0"


async def test_a_script_of_run_is_imported_in_the_process_as_ever(session: Session, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    code = "import multiprocessing\ndef name(): return __name__\nif __name__ == '__main__':\n"
    code += "    with multiprocessing.get_context('spawn').Pool(1) as pool: print(pool.apply(name))"
    script.write_text(code)
    assert (await session.execute(f"%run {script}")).text == "__mp_main__"
