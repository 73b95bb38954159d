"""Hooks of code in a copy: those that wait for another process are interrupted, and none of them hangs an undo."""

from __future__ import annotations

import asyncio

import pytest

from cellblock.host import Session
from scripts import Script
from suite import first_quick

_ASKING = {
    "a manager": ("import multiprocessing\nm = multiprocessing.Manager(); d = m.dict(); q = m.Queue()", "Manager"),
    "a new connection": (
        "import os, socket\n"
        "s = socket.socket(socket.AF_UNIX); s.bind('s'); s.listen(5)\n"
        "if not (child := os.fork()):\n"
        "    while True:\n"
        "        with s.accept()[0] as c: c.send(c.recv(1))\n"
        "s.close()\n"
        "def ask():\n"
        "    c = socket.socket(socket.AF_UNIX); c.connect('s'); c.send(b'x'); c.recv(1)\n"
        "os.register_at_fork(after_in_child=ask)",
        "The hook ask",
    ),
    "a pipe": ("import os\nr, w = os.pipe()\nos.register_at_fork(after_in_child=lambda: os.read(r, 1))", "The hook <lambda>"),
    "a lock": (
        "import os, threading\nl = threading.Lock(); l.acquire()\nos.register_at_fork(after_in_child=l.acquire)",
        "The hook",
    ),
    "an error": ("import os\nos.register_at_fork(after_in_child=lambda: 1 / 0)", "ZeroDivisionError"),
    "output": ("import os\nos.register_at_fork(after_in_child=lambda: print('from the hook', flush=True))", "from the hook"),
}


@pytest.mark.parametrize("kind", first_quick(_ASKING, 2))
async def test_no_hook_hangs_an_undo(session: Session, kind: str) -> None:
    code, told = _ASKING[kind]
    assert (await session.execute(code)).ok
    await session.execute("x = 1")
    await asyncio.wait_for(session.undo(), 30)
    result = await session.execute("'x' in globals()")
    assert told in (result.text or "")
    assert (result.text or "").endswith("False")


@pytest.fixture
def nothing_left_behind() -> None:
    """Scripts run in processes of their own, which are waited for."""


@pytest.mark.slow
def test_only_a_hook_that_waits_is_interrupted(printed: Script) -> None:
    script = """
import os, time
from cellblock.worker.forks import hooks
def waits(): os.read(os.pipe()[0], 1)
def works():
    until = time.process_time() + 0.3
    while time.process_time() < until: pass
    print("worked")
def both():
    for hook in (waits, works):
        try: hook()
        except hooks.InterruptedHookError: print("interrupted", hook.__name__)
hooks.run(both)
"""
    assert printed(script) == ["interrupted waits", "worked"]
