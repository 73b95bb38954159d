"""What has to happen around a fork of a live kernel, so that the libraries in it go on working in the copy.

`refusal` tells why a fork would not give a working copy. `prepare` comes right before the fork, `repair` after it in the copy
that goes on, and `reseed` if that is a branch. None of them imports anything that is not imported already.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from cellblock.worker.fork_descriptors import is_sqlite, locked_file, reopen_databases, separate
from cellblock.worker.fork_pools import Reset, forget_workers, leave_processes, reset_of
from cellblock.worker.fork_threads import file_of, other_threads, owners

_SURVIVES = ("openblas", "libgomp", "libarrow", "_duckdb", "cv2.")
"""Parts of the names of libraries whose threads are no loss: they start others, and see to their locks at a fork themselves.

OpenMP of GNU does so once it was paused. Each of them is tried by `make libraries`.
"""

_HARMLESS = ("jemalloc_bg_thd", "polars-ooc-clea")
"""Names of threads that libraries start when they are imported, and that a copy does without."""

_OPENMP = "libgomp"
_PAUSE_HARD = 2
_ENDING = (0.0002, 0.001, 0.005)
"""Seconds to wait for threads that Python has forgotten already: they end a moment after `join` returns."""

_NEVER = (
    "and it does not work in a copy of the process. It cannot be stopped either: use it in a process or in a session of its "
    "own, and keep your variables with save()"
)

_HELPERS = {
    "multiprocessing.resource_tracker": ("_resource_tracker", "_pid"),
    "multiprocessing.forkserver": ("_forkserver", "_forkserver_pid"),
    "joblib.externals.loky.backend.resource_tracker": ("_resource_tracker", "_pid"),
    "loky.backend.resource_tracker": ("_resource_tracker", "_pid"),
}
"""Modules that run a process which users do not know, and where they keep its id."""


@dataclass
class _Threads:
    """What a look at the threads of this process has shown.

    Attributes:
        ending: Whether some are about to end.
        objections: Why a copy could not do without the others.
        resets: How it does without those that only wait.
        openmp: Files of the libraries whose threads have to be stopped before a fork.
    """

    ending: bool = False
    objections: list[str] = field(default_factory=list)
    resets: list[Reset] = field(default_factory=list)
    openmp: set[str] = field(default_factory=set)


@dataclass
class _Prepared:
    """What the original knows, and a copy has to know."""

    resets: list[Reset] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)
    connections: list[str] = field(default_factory=list)
    random: tuple[Any, ...] | None = None


_prepared = _Prepared()


def refusal(ours: Collection[int] = ()) -> str | None:
    """Return why a fork of this process now would not give a working copy, and what to do about it.

    Args:
        ours: The ids (`threading.get_native_id`) of threads that the caller sees to.
    """
    if (path := locked_file()) is not None:
        if is_sqlite(path):
            return f"a transaction is open in the SQLite database {path}: commit it, or roll it back"
        return f"the file {path} is locked by this session, and a copy would not have the lock: close the file"
    cuda = sys.modules.get("torch.cuda")
    if cuda is not None and cuda.is_initialized():
        return f"CUDA has been used, {_NEVER}"
    threads = _look(ours)
    for seconds in _ENDING:
        if not threads.ending:
            break
        time.sleep(seconds)
        threads = _look(ours)
    return threads.objections[0] if threads.objections else None


def _look(ours: Collection[int]) -> _Threads:
    found = _Threads()
    others = set(other_threads()).difference(ours)
    if not others:
        return found
    started = owners()
    python = file_of(ctypes.cast(ctypes.pythonapi.Py_GetVersion, ctypes.c_void_p).value or 0)
    libraries: Counter[str] = Counter()
    for number in others:
        file = started.get(number, "")
        if _OPENMP in file:
            found.openmp.add(file)
        elif file != python and not _survives(number, file):
            libraries[_library(file)] += 1
    _look_at_python(found, {number for number in others if started.get(number) == python})
    for library, count in libraries.items():
        found.objections.append(f"{library} has started {_number(count, 'thread')}, {_NEVER}")
    return found


def _survives(number: int, file: str) -> bool:
    """Whether a library does without a thread of its own in a copy."""
    if any(part in os.path.basename(file) for part in _SURVIVES):
        return True
    try:
        with open(f"/proc/self/task/{number}/comm", encoding="utf-8", errors="replace") as name:
            return name.read().strip() in _HARMLESS
    except OSError:
        return True  # it has ended


def _look_at_python(found: _Threads, numbers: set[int]) -> None:
    """Sort Python's threads, given by their ids, into those that a copy can do without, and others."""
    known = {thread.native_id: thread for thread in threading.enumerate()}
    frames = sys._current_frames()  # noqa: SLF001  # the official way
    for number in numbers:
        thread = known.get(number)
        if thread is None:
            found.ending = True
            found.objections.append("a thread without a name is running, which a copy would not have: wait until it has ended")
            continue
        frame = frames.get(thread.ident or 0)
        reset = reset_of(thread, frame) if frame is not None else None
        if reset is not None:
            found.resets.append(reset)
            continue
        name = str(thread.name)[:80]
        found.objections.append(f'the thread "{name}" is running, which a copy would not have: stop it, or wait until it ends')


def _library(file: str) -> str:
    """Return the name of the package that a file of code belongs to."""
    if not file:
        return "a library"
    packages = [part for part in file.split("site-packages/")[-1].split("/") if part]
    name = packages[0] if "site-packages/" in file else packages[-1]
    return _NAMES.get(name.removesuffix(".libs"), name.removesuffix(".libs"))


_NAMES = {"jaxlib": "jax", "_polars_runtime": "polars", "_polars_runtime_32": "polars", "_polars_runtime_64": "polars"}
"""What users call a package, where it differs from the name of its directory."""


def _number(count: int, word: str) -> str:
    return f"{count} {word}{'s' if count != 1 else ''}"


def prepare() -> None:
    """Get this process ready to be forked now. It goes on as before."""
    threads = _look(())
    for file in threads.openmp:
        # Otherwise the next parallel loop in the copy waits for threads that are not there. Here it starts them again.
        ctypes.CDLL(file).omp_pause_resource_all(_PAUSE_HARD)
    _prepared.resets = threads.resets
    _prepared.processes = _processes()
    _prepared.connections = []
    _prepared.random = random.getstate()


def _processes() -> list[str]:
    """Return the names of the processes that the code has started and that still run."""
    hidden = set()
    for module, (owner, attribute) in _HELPERS.items():
        if module in sys.modules:
            hidden.add(getattr(getattr(sys.modules[module], owner, None), attribute, None))
    names = []
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children", encoding="utf-8") as file:
                children = [int(number) for number in file.read().split()]
        except OSError:
            continue  # the thread has ended, or this machine does not tell
        names += [name for child in children if child not in hidden and (name := _process_name(child))]
    return names


def _process_name(process: int) -> str:
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            name, _, rest = file.read().partition("(")[2].rpartition(")")
    except OSError:
        return ""
    return "" if rest.split()[0] in "ZX" else name


def part(above: int = 2) -> None:
    """In a copy that waits: share no connection with the original, whose other side shall see when the original closes it.

    Args:
        above: The highest of the descriptors that the caller sees to.
    """
    _prepared.connections += separate(above)


def repair(above: int = 2) -> list[str]:
    """In a copy that goes on: have pools, connections and databases work again, and the random state be what it was.

    The files of the session have to be what they will be: databases are opened again.

    Args:
        above: The highest of the descriptors that the caller sees to.

    Returns:
        What did not come along, in sentences for the user.
    """
    told: list[str] = []

    def attempt(step: Callable[[], object]) -> None:
        try:
            result = step()
        except BaseException as error:  # whatever the code has done to what is repaired here
            told.append(f"Something could not be repaired in the copy: {type(error).__name__}: {error}"[:300])
            return
        told.extend([result] if isinstance(result, str) else result if isinstance(result, list) else [])

    part(above)
    told += _prepared.connections
    for step in (*_prepared.resets, reopen_databases, _restore_random):
        attempt(step)
    if names := _prepared.processes:
        attempt(leave_processes)
        told.append(f"Processes that did not come along: {', '.join(sorted(names))[:200]}.")
    attempt(forget_workers)
    return list(dict.fromkeys(told))


def _restore_random() -> None:
    """Undo what Python does to `random` at a fork. A branch gets a new seed all the same, from `reseed`."""
    if _prepared.random is not None:
        random.setstate(_prepared.random)


def reseed(seed: int | None = None) -> None:
    """Draw everything random again, so that no two forks share it. Generators that the code has made itself are not known.

    Args:
        seed: What to draw from; None for something new. Names of temporary files and keys are always new.
    """
    random.seed(seed)
    setattr(tempfile, "_name_sequence", None)  # noqa: B010  # private, and the only way to draw new names
    tempfile.tempdir = None
    # Modules that were not preloaded will seed themselves when they are imported.
    if (process := sys.modules.get("multiprocessing.process")) is not None:
        process.current_process().authkey = os.urandom(32)
    numpy = sys.modules.get("numpy.random")
    if seed is not None and numpy is None:  # it loads this part of itself late, and would draw something new then
        numpy = getattr(sys.modules.get("numpy"), "random", None)
    if numpy is not None:
        numpy.seed(None if seed is None else [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF])
    if (torch := sys.modules.get("torch")) is not None:
        _ = torch.seed() if seed is None else torch.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)
