"""Does the slow work that every kernel needs, once, before the first fork."""

from __future__ import annotations

import gc
import importlib
import linecache
import os
import socket
import sys
import sysconfig
import traceback
import warnings
from typing import TYPE_CHECKING

from cellblock.wire.control import EXIT_NO_IPYTHON, EXIT_PRELOAD
from cellblock.wire.messages import Changes, Complete, Execute, Inspect, Park, Shutdown, ToWorker
from cellblock.wire.protocol import Conversation, Side, State
from cellblock.worker.environment_packages import trusted_packages
from cellblock.worker.forks import arenas, hot_pages

if TYPE_CHECKING:
    from cellblock.worker.main import Worker
    from cellblock.worker.outbox import Outbox
    from cellblock.worker.shell import Shell

_CELLS = (
    "x = 1",
    "print('warm')\nx",
    "import asyncio\nawait asyncio.sleep(0)",
    "from IPython.display import display, HTML\ndisplay(HTML('<b>warm</b>'))",
    "def f():\n    return 1 / 0\nf()",
    "1 +",
)

_CELLS_FOR = {
    # A first plot loads fonts, and a first table the formatters: this saves kernels a tenth of a second.
    "matplotlib": ("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.title('warm')\nplt.show()", "plt.close('all')"),
    "pandas": ("import pandas\npandas.DataFrame({'a': [1]})", "pandas.DataFrame({'a': [1]})['b']"),
}


def warm(preload: tuple[str, ...], environment: str = "") -> tuple[Shell, Outbox]:
    """Import IPython and the preloaded modules, create the shell, and run some cells to load what cells need.

    If an import fails, exit the process with the cause on stderr.

    Args:
        preload: Names of modules.
        environment: The directory of a trusted environment, to import them from; empty for the interpreter's packages.
    """
    gc.disable()  # nearly everything created here stays; repeated collections would take longer than the cells below
    arenas.put_on_heap()
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    try:
        from cellblock.worker import shell as shells
        from cellblock.worker.loop import allow_nested_run
        from cellblock.worker.main import Worker
        from cellblock.worker.outbox import Outbox
    except ImportError:
        traceback.print_exc()
        sys.exit(EXIT_NO_IPYTHON)
    outbox = Outbox()
    shell = shells.create(outbox)
    allow_nested_run()
    cells = [*_CELLS]
    for name in {module.partition(".")[0] for module in preload}:
        cells += _CELLS_FOR.get(name, ())
    if environment:  # its packages must not provide what the kernel itself imports
        gc.freeze()
        rehearse(Worker, shell, outbox, [*_CELLS])
        cells = cells[len(_CELLS) :]
    with trusted_packages(environment):
        _import(preload, shell)
        gc.freeze()  # so that IPython's own full collection only visits the cells' objects
        rehearse(Worker, shell, outbox, cells)
    linecache.clearcache()
    sysconfig.get_config_vars()  # loads a module that every kernel would otherwise read and keep for itself
    # Preloaded libraries with threads (OpenBLAS) restart them in the child themselves.
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
    gc.collect()
    gc.freeze()  # otherwise a collection in a child would write to, and so copy, every page shared with us
    gc.enable()
    return shell, outbox


def _import(preload: tuple[str, ...], shell: Shell) -> None:
    """Import modules. If one fails, exit the process with the cause on stderr."""
    for name in preload:
        try:
            with shell.builtin_trap:  # with `get_ipython`, as in a cell: pandas checks for a notebook when it is imported
                importlib.import_module(name)
        except BaseException:  # of any kind: the answer is the same
            traceback.print_exc()
            sys.exit(EXIT_PRELOAD)


def rehearse(worker_class: type[Worker], shell: Shell, outbox: Outbox, cells: list[str]) -> None:
    """Run cells like a kernel, through a channel, so that everything they use is loaded too, and forget them again.

    Args:
        worker_class: `Worker`, which can only be imported once IPython is known to be available.
        shell: The shell.
        outbox: The shell's outbox.
        cells: The cells to run.
    """
    ours, theirs = socket.socketpair()
    worker = worker_class(shell, outbox, theirs)
    conversation = Conversation(Side.HOST)
    questions: list[ToWorker] = [*map(Execute, cells), Complete("pri", 3), Inspect("print", 5), Changes(), Park(1), Shutdown()]

    def answer() -> None:
        conversation.receive(ours.recv(1 << 20))
        if conversation.state is State.IDLE:
            ours.sendall(conversation.send(questions.pop(0)))

    worker.loop.add_reader(ours.fileno(), answer)
    worker.run()
    worker.loop.remove_reader(ours.fileno())
    worker.close()
    ours.close()
    shell.reset(new_session=True)
    shell.execution_count = 1


def find_hot_pages(shell: Shell, outbox: Outbox) -> None:
    """Let a fork find the pages that each cell writes to, in a zygote whose memory no longer moves."""
    from cellblock.worker.main import Worker

    ours, theirs = socket.socketpair()
    finder, own = hot_pages.Finder(), os.getpid()
    if (pid := os.fork()) == 0:
        try:
            hot_pages.end_with(own)
            ours.close()
            worker = Worker(shell, outbox, theirs)
            worker.fork_copy = finder.fork_copy
            worker.run()
        finally:
            os._exit(0)
    theirs.close()
    conversation = Conversation(Side.HOST)
    cell = Execute("x = 1")
    for question in (cell, Park(1), cell, Park(2), cell, Park(3)):
        while conversation.state is not State.IDLE and (data := ours.recv(1 << 20)):
            conversation.receive(data)
        if conversation.state is State.IDLE:
            ours.sendall(conversation.send(question))
    ours.close()
    finder.take()
    os.waitpid(pid, 0)
