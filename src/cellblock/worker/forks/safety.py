"""Prepares a live kernel for a fork, and repairs its copy, so that its libraries keep working there.

`refusal` tells why a fork would not give a working copy. `prepare` comes right before the fork, `part` after it in the copy,
and `repair` in each kernel created from the copy. None of them imports a module that is not already imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from cellblock.worker.channel import NURSERY
from cellblock.worker.forks import hooks
from cellblock.worker.forks.descriptors import Descriptors, Moved, is_sqlite, locked_file, reopen_databases, separate, shown
from cellblock.worker.forks.pools import Reset, forget_workers, leave_processes, reset_of
from cellblock.worker.forks.threads import file_of, name_of, other_threads

_SURVIVES = ("openblas", "libiomp", "libomp.", "libarrow", "_duckdb", "cv2.")
"""Parts of the names of libraries that start new threads when needed, and handle their locks at a fork themselves.

Each of them is tried by `make libraries`.
"""

_HARMLESS = ("jemalloc_bg_thd", "polars-ooc-clea")
"""Names of threads that libraries start when they are imported, and that a copy does not need."""

_OPENMP = "libgomp"
_PAUSE, _PAUSE_HARD = "omp_pause_resource_all", 2
_STEP, _UNKNOWN_RUNS, _LEAVES = 0.0002, 0.005, 0.5
"""Seconds to wait for threads unknown to `threading`: at first; in total if one runs Python code; in total if none does. They
end a moment after `join` returns, which is long on a busy machine."""

_UNKNOWN = "of unknown name"
"""The name of a process in a sandbox of Landlock, where each sees only itself."""

_SHARED = re.compile(rb"^\S+ rw-s \S+ \S+ \S+ +(?:/dev/zero|/memfd:|/SYSV|/dev/shm/(?!sem\.))", re.MULTILINE)
"""Lines of /proc/self/maps with memory that a fork shares, other than files of the workspace. Locks do not count."""

_MAPPED = re.compile(rb"^\S+ r[w-]-s \S+ \S+ \S+ +(/(?!dev/|memfd:|SYSV)[^\n]*)$", re.MULTILINE)
"""Memory maps of files (`numpy.memmap`): a restore replaces files that have changed, and branches have files of their own."""

_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_GPU = "/dev/nvidia"
_SPARE_DESCRIPTORS = 64
"""Descriptors that must be left for a copy, and for a kernel that is made from it."""

_FEW = 3
"""Maximum number of names to list."""

_NEVER = (
    "which do not survive a checkpoint and cannot be stopped: use the library in a separate process or session, and "
    "save your variables with save()"
)

_HELPERS = {
    "multiprocessing.resource_tracker": ("_resource_tracker", "_pid"),
    "multiprocessing.forkserver": ("_forkserver", "_forkserver_pid"),
    "joblib.externals.loky.backend.resource_tracker": ("_resource_tracker", "_pid"),
    "loky.backend.resource_tracker": ("_resource_tracker", "_pid"),
}
"""Modules with a helper process that users do not know, and the attributes with its id."""


@dataclass
class _Threads:
    """The result of checking this process's threads.

    Attributes:
        patience: Seconds to wait for threads that may be about to end.
        objections: Why a copy could not do without the others.
        resets: How a copy does without idle ones.
        openmp: Files of the libraries whose threads must be stopped before a fork.
        libraries: Number of threads by library, for libraries that do not work in a copy.
        running: Whether Python threads that run the code are among them.
    """

    patience: float = 0.0
    objections: list[str] = field(default_factory=list)
    resets: list[Reset] = field(default_factory=list)
    openmp: set[str] = field(default_factory=set)
    libraries: Counter[str] = field(default_factory=Counter)
    running: bool = False


@dataclass
class _Prepared:
    """Knowledge of the original that it passes on to a copy."""

    resets: list[Reset] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)
    connections: list[str] = field(default_factory=list)
    interrupted: list[str] = field(default_factory=list)
    seen: Descriptors = field(default_factory=Descriptors)
    last: int = 2
    timers: bool = False
    directory: str = ""


_prepared = _Prepared()
_found: tuple[_Threads, Descriptors] | None = None
"""The last findings of `refusal`, for `prepare`."""


def refusal(ours: Collection[int] = ()) -> str | None:
    """Return why a fork of this process now would not give a working copy, with advice.

    Args:
        ours: The ids (`threading.get_native_id`) of threads that the caller handles.
    """
    global _found
    seen = Descriptors.now()
    threads = _look(ours)
    _found = threads, seen
    if (locked := locked_file(seen)) is not None:
        name = shown(locked[1])
        if is_sqlite(*locked, seen):
            return f"a transaction is open in the SQLite database {name}: commit it, or roll it back"
        return f"the file {name} is locked by this session, and checkpoints cannot contain locks: close the file"
    cuda = sys.modules.get("torch.cuda")
    if cuda is not None and cuda.is_initialized():
        return f"CUDA has state and threads, {_NEVER}"
    if gpu := next((path for path in seen.paths.values() if path.startswith(_GPU)), ""):
        return f"{shown(gpu)} is open, and a GPU has state and threads, {_NEVER}"
    if len(seen.paths) + _SPARE_DESCRIPTORS > resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
        return f"{len(seen.paths)} files are open, and a checkpoint needs more descriptors: close files that you do not need"
    step, waited = _STEP, 0.0
    while waited < threads.patience:
        time.sleep(step)
        step, waited = 2 * step, waited + step
        threads = _look(ours)
    _found = threads, seen
    return threads.objections[0] if threads.objections else None


def threads_run() -> bool:
    """Return whether the last `refusal` found threads that run the code, other than idle ones of pools."""
    return _found is not None and _found[0].running


def threads_run_now() -> bool:
    """Return whether threads run the code now, other than idle ones of pools."""
    return _look(()).running


def lasting() -> str | None:
    """Return a sentence for the user about libraries with threads that do not work in a copy, or None."""
    libraries = _look(()).libraries
    if not libraries:
        return None
    count = _threads(sum(libraries.values()))
    return (
        f"{', '.join([*libraries][:_FEW])} has started {count}, which checkpoints cannot contain. While they "
        "run, undo, fork and recovery after a crash do not work. To avoid this, use the library in a separate process "
        "(multiprocessing.get_context('spawn')) or session."
    )


def _look(ours: Collection[int]) -> _Threads:
    found = _Threads()
    others = {number: file for number, file in other_threads().items() if number not in ours}
    if not others:
        return found
    python = file_of(ctypes.cast(ctypes.pythonapi.Py_GetVersion, ctypes.c_void_p).value or 0)
    for number, file in others.items():
        if _OPENMP in file and hasattr(ctypes.CDLL(file), _PAUSE):  # a version of 2018 lacks it
            found.openmp.add(file)
        elif file != python and not _survives(number, file):
            found.libraries[_library(file)] += 1
    _look_at_python(found, {number for number, file in others.items() if file == python})
    for library, count in found.libraries.items():
        found.objections.append(f"{library} has started {_threads(count)}, {_NEVER}")
    return found


def _survives(number: int, file: str) -> bool:
    """Return whether a library works in a copy without one of its threads."""
    if any(part in os.path.basename(file) for part in _SURVIVES):
        return True
    try:
        name = name_of(number)
    except OSError:
        return False
    return name is None or name in _HARMLESS


def _look_at_python(found: _Threads, numbers: set[int]) -> None:
    """Classify Python's threads by their ids: those that a copy can do without, and others."""
    known = {thread.native_id: thread for thread in threading.enumerate()}
    frames = sys._current_frames()  # noqa: SLF001  # the official way
    for number in numbers:
        thread = known.get(number)
        if thread is None:
            found.patience = _UNKNOWN_RUNS if frames.keys() - {thread.ident for thread in known.values()} else _LEAVES
            found.running = True
            found.objections.append(
                "a thread without a name is running, and checkpoints cannot contain threads: wait until it ends"
            )
            continue
        frame = frames.get(thread.ident or 0)
        reset = reset_of(thread, frame) if frame is not None else None
        if reset is not None:
            found.resets.append(reset)
            continue
        found.running = True
        name = shown(str(thread.name))
        found.objections.append(
            f'the thread "{name}" is running, and checkpoints cannot contain threads: stop it, or wait until it ends'
        )


def _library(file: str) -> str:
    """Return the name of the package that contains a file of code."""
    if not file:
        return "a library"
    packages = [part for part in file.split("site-packages/")[-1].split("/") if part]
    name = packages[0] if "site-packages/" in file else packages[-1]
    name = name.removesuffix(".libs")
    return _NAMES.get(name, shown(name))


_NAMES = {"jaxlib": "jax", "_polars_runtime": "polars", "_polars_runtime_32": "polars", "_polars_runtime_64": "polars"}
"""Names of packages, where they differ from their directories."""


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count != 1 else ''}"


def prepare() -> None:
    """Prepare this process for a fork, right after `refusal` has returned None. The process continues as before."""
    global _prepared, _found
    assert _found is not None
    threads, seen = _found
    _found = None
    for file in threads.openmp:
        # Otherwise the next parallel loop in the copy waits for threads that do not exist. Here it starts them again.
        getattr(ctypes.CDLL(file), _PAUSE)(_PAUSE_HARD)
    _prepared = _Prepared(threads.resets, _processes(), seen=seen.to_part(NURSERY), timers=timers_run())
    with contextlib.suppress(OSError):  # it was removed
        _prepared.directory = os.getcwd()


def _enter_directory(moved: Moved) -> str | None:
    """Enter the current directory again, if a restore has replaced it."""
    try:
        now = os.readlink("/proc/self/cwd")
    except OSError:
        now = os.getcwd()
    if not (instead := moved.instead(now, _prepared.directory)):
        return None
    try:
        os.chdir(instead)
    except OSError as error:
        return f"The current directory, {shown(instead)}, cannot be entered again: {error.strerror}."
    return None


def timers_run() -> bool:
    """Return whether a timer of this process sends signals, and so runs handlers of the code."""
    return any(signal.getitimer(which)[0] for which in _TIMERS)


def _stopped_timers() -> str | None:
    return "Timers (signal.alarm, signal.setitimer) have stopped: start them again." if _prepared.timers else None


def _processes() -> list[str]:
    """Return the names of the processes that the code started and that still run."""
    hidden = set()
    for module, (owner, attribute) in _HELPERS.items():
        if module in sys.modules:
            hidden.add(getattr(getattr(sys.modules[module], owner, None), attribute, None))
    names: list[str] = []
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return names  # the usual case
    try:
        threads = os.listdir("/proc/self/task")
    except OSError:
        return [_UNKNOWN]
    for thread in threads:
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
    except FileNotFoundError:
        return ""  # it has ended
    except OSError:
        return _UNKNOWN
    return "" if rest.split()[0] in "ZX" else shown(name)


def _shared_memory(moved: Moved) -> list[str]:
    """Return sentences about memory that this process shares with its original, or with files."""
    try:
        with open("/proc/self/maps", "rb") as file:
            maps = file.read()
    except OSError:
        return []  # a machine without it
    told = []
    if _SHARED.search(maps):
        told.append("Shared memory (mmap, multiprocessing) was not copied: its changes are not undone, and branches share it.")
    replaced = sorted({name for path in _MAPPED.findall(maps) if (name := moved.replaced(os.fsdecode(path)))})
    return told + [
        f"{shown(name)} was replaced, but its memory map still shows the old content: map it again."
        for name in replaced[:_FEW]
    ]


def shares(last: int) -> bool:
    """Return, after `prepare`, whether a copy shares descriptors with this process that `part` handles.

    Args:
        last: The highest of the descriptors that the caller handles.
    """
    _prepared.last = last
    return any(descriptor > last for descriptor in _prepared.seen.paths)


def part(last: int) -> None:
    """Stop sharing connections with the original, in a waiting copy, so that the other side sees when it closes them."""
    _prepared.last = last
    _prepared.connections += separate(_prepared.seen, last)


def note_interrupted(names: list[str]) -> None:
    """Record interrupted hooks for `repair`, in a kernel created from a copy."""
    _prepared.interrupted = names


def repair(moved: Moved | None = None) -> list[str]:
    """Make pools, connections, files and databases work again, in a kernel created from a copy.

    The session's files must be in their final state, because they are reopened.

    Args:
        moved: The locations of files, if they have changed.

    Returns:
        What was lost, in sentences for the user.
    """
    told: list[str] = []
    place = moved or Moved()

    def attempt(step: Callable[[], object]) -> None:
        try:
            result = step()
        except BaseException as error:  # the code may have changed anything that is repaired here
            told.append(f"Part of the restored state could not be repaired: {type(error).__name__}: {error}"[:300])
            return
        told.extend([result] if isinstance(result, str) else result if isinstance(result, list) else [])

    told += separate(_prepared.seen, _prepared.last, place)
    told += _prepared.connections
    databases, memory = (lambda: reopen_databases(_prepared.seen, place)), (lambda: _shared_memory(place))
    for step in (*_prepared.resets, databases, memory, _stopped_timers, lambda: _enter_directory(place)):
        attempt(step)
    if names := _prepared.processes:
        attempt(leave_processes)
        told.append(f"Background processes are not restored; start them again: {', '.join(sorted(names))[:200]}.")
    names = list(_prepared.interrupted)
    attempt(lambda: forget_workers(names))
    told.extend(filter(None, [hooks.sentence(names)]))
    return list(dict.fromkeys(told))
