# ruff: noqa: SLF001  # pools offer no way to ask what they do, or to begin again
"""Detects Python threads that only wait for work, and how a copy of this process does without them.

Idle pool threads are no loss: a copy starts new ones. Everything is found through `sys.modules`: a pool of a library that was
never imported does not exist.
"""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, ModuleType
from typing import Any

from cellblock.worker.forks import hooks

Reset = Callable[[], str | None]
"""Repairs something in a copy, any number of times; returns a sentence if something was lost."""

_kept: list[object] = []
"""Objects of the original that must not be closed in a copy: closing them would end the original's."""


def reset_of(thread: threading.Thread, frame: FrameType) -> Reset | None:
    """Return how a copy does without a thread, or None if it needs the thread: it is busy, or its purpose is unknown.

    Args:
        thread: A thread other than this one.
        frame: Its current frame.
    """
    for kind in (_thread_pool, _process_pool, _loky, _feeder, _pool, _progress_bars, _waiting_for_process):
        if (reset := kind(thread, frame)) is not None:
            return reset
    return None


def _nothing() -> None:
    return None


def _module(name: str) -> Any:
    module = sys.modules.get(name)
    return module if isinstance(module, ModuleType) else None


def _thread_pool(thread: threading.Thread, frame: FrameType) -> Reset | None:
    """Handle `ThreadPoolExecutor`, including the one of `asyncio.to_thread`."""
    pools = _module("concurrent.futures.thread")
    if pools is None or frame.f_code is not pools._worker.__code__ or "work_item" in frame.f_locals:
        return None
    reference = next((argument for argument in _arguments(thread) if isinstance(argument, weakref.ref)), None)
    pool = reference() if reference is not None else None
    if pool is None:
        return _nothing  # it has ended, and the thread about to end
    return (lambda: _empty(pool, pools)) if pool._work_queue.empty() else None


def _empty(pool: Any, pools: Any) -> None:
    if not any(thread.is_alive() for thread in pool._threads):
        fresh = pools.ThreadPoolExecutor(1)
        for name in ("_threads", "_work_queue", "_idle_semaphore", "_shutdown_lock"):
            setattr(pool, name, getattr(fresh, name))


def _process_pool(thread: Any, _frame: FrameType) -> Reset | None:
    """Handle `ProcessPoolExecutor`: the copy starts its own processes on demand."""
    pools = _module("concurrent.futures.process")
    if pools is None or type(thread) is not pools._ExecutorManagerThread or thread.pending_work_items:
        return None
    pool = thread.executor_reference()

    def reset() -> None:
        if pool is not None and pool._executor_manager_thread is thread:
            _kept.append(dict(vars(pool)))
            pools.ProcessPoolExecutor.__init__(
                pool,
                pool._max_workers,
                pool._mp_context,
                pool._initializer,
                pool._initargs,
                max_tasks_per_child=pool._max_tasks_per_child,
            )

    return reset


def _loky(thread: Any, _frame: FrameType) -> Reset | None:
    """Handle joblib's pool: the next call in the copy creates another."""
    place = type(thread).__module__
    if not place.endswith("loky.process_executor") or type(thread).__name__ != "_ExecutorManagerThread":
        return None
    if thread.pending_work_items:
        return None
    pool = thread.executor_reference()
    reusable = _module(place.replace("process_executor", "reusable_executor"))

    def reset() -> None:
        _kept.append(pool)
        if pool is not None and reusable is not None and reusable._executor is pool:
            reusable._executor = reusable._executor_kwargs = None

    return reset


def _feeder(thread: threading.Thread, _frame: FrameType) -> Reset | None:
    """Handle the feeder thread of a `multiprocessing.Queue`, which starts another on demand."""
    target = getattr(thread, "_target", None)
    if getattr(target, "__name__", "") != "_feed" or not _of(target, "multiprocessing.queues", "loky.backend.queues"):
        return None
    waiting = next(iter(_arguments(thread)), None)
    return _nothing if not waiting else None


def _pool(thread: threading.Thread, _frame: FrameType) -> Reset | None:
    """Handle `multiprocessing.Pool` and `ThreadPool`: they cannot be restarted, so they are closed."""
    target: Any = getattr(thread, "_target", None)
    if not _of(target, "multiprocessing.pool") or any(isinstance(item, dict) and item for item in _arguments(thread)):
        return None
    if target.__name__ != "_handle_workers":
        return _nothing  # one of these is enough for each pool
    pools = _module("multiprocessing.pool")

    def reset() -> str | None:
        for pool in instances(pools.Pool):
            if pool._worker_handler is thread and pool._state == pools.RUN:
                pool._state, pool._pool = pools.CLOSE, []
                kind = type(pool).__name__
                return f"The {kind} with {pool._processes} workers was closed: create a new one."
        return None

    return reset


def _progress_bars(thread: Any, frame: FrameType) -> Reset | None:
    """Handle tqdm's monitor, which the next progress bar starts again."""
    if type(thread).__name__ != "TMonitor" or not type(thread).__module__.startswith("tqdm."):
        return None
    if frame.f_code.co_filename != threading.__file__:
        return None  # it may hold the lock of the bars

    def reset() -> None:
        thread.tqdm_cls.monitor = None

    return reset


def _waiting_for_process(thread: threading.Thread, _frame: FrameType) -> Reset | None:
    """Handle asyncio's thread that waits for a process. The process is reported, so the thread need not be."""
    target: Any = getattr(thread, "_target", None)
    return _nothing if _of(target, "asyncio.unix_events") and target.__name__ == "_do_waitpid" else None


def _arguments(thread: threading.Thread) -> tuple[Any, ...]:
    arguments = getattr(thread, "_args", ())
    return arguments if isinstance(arguments, tuple) else ()


def _of(target: Any, *modules: str) -> bool:
    place = getattr(target, "__module__", None)
    return isinstance(place, str) and place.endswith(modules)


def instances(kind: type[Any]) -> Iterator[Any]:
    """Yield all instances of a class and its subclasses.

    Every object refers to its class. Iterating over all objects instead would write to each of them, and in a copy copy every
    page.

    Args:
        kind: A class that is not built into the interpreter.
    """
    kinds, todo = {kind}, [kind]
    while todo:
        below = [one for one in type.__subclasses__(todo.pop()) if one not in kinds]
        kinds.update(below)
        todo += below
    yield from (thing for thing in gc.get_referrers(*kinds) if type(thing) in kinds)


def leave_processes() -> None:
    """Mark child processes as the original's, in a copy. To callers, they appear killed."""
    for module, name in (("subprocess", "Popen"), ("asyncio.base_subprocess", "BaseSubprocessTransport")):
        if (place := _module(module)) is not None:
            for process in instances(getattr(place, name)):
                _give_up(process)


def forget_workers(interrupted: list[str]) -> str | None:
    """Tell multiprocessing, in a copy, that its processes are the original's, and that its queues have no threads.

    Args:
        interrupted: Collects the names of hooks that wait for another process.

    Returns:
        A sentence if there is a `Manager`: its process stays with the original, and must not be waited for.
    """
    if (process := _module("multiprocessing.process")) is not None:
        process._children.clear()  # otherwise they would be killed at the end of this process
    managed = False
    waiting: list[tuple[Callable[[Any], object], Any]] = []
    if (util := _module("multiprocessing.util")) is not None:
        managers = _module("multiprocessing.managers")
        for (_, _, hook), thing in sorted(util._afterfork_registry.items(), key=lambda item: item[0][0]):
            if managers is not None and isinstance(thing, managers.BaseProxy):
                thing._manager, managed = None, True  # its own hook would ask that process
            else:
                waiting.append((hook, thing))
    if waiting:
        hooks.run(lambda: _run_each(waiting, interrupted))
    if (server := _module("multiprocessing.forkserver")) is not None:
        # It would wait for the server, which is a child of the original.
        for name in ("_forkserver_address", "_forkserver_alive_fd", "_forkserver_pid"):
            setattr(server._forkserver, name, None)
    return "Objects of multiprocessing.Manager were lost: create a new Manager." if managed else None


def _run_each(waiting: Iterable[tuple[Callable[[Any], object], Any]], interrupted: list[str]) -> None:
    for hook, thing in waiting:
        try:
            hook(thing)
        except hooks.InterruptedHookError:
            interrupted.append(hooks.name_of(hook))
        except Exception:  # as multiprocessing does
            continue


def _give_up(process: Any) -> None:
    if isinstance(process, subprocess.Popen):
        process.returncode = -signal.SIGKILL if process.returncode is None else process.returncode
    elif process.get_returncode() is None:
        process._process_exited(-signal.SIGKILL)
