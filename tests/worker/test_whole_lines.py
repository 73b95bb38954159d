"""Lines of processes that `multiprocessing` starts do not mix."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock import Session
from checkpoint_sessions import value
from suite import first_quick


@pytest.mark.parametrize("method", first_quick(["spawn", "forkserver"]))
async def test_a_process_of_multiprocessing_prints_whole_lines(session: Session, tmp_path: Path, method: str) -> None:
    code = f"""
import multiprocessing, os

def look(queue):
    import os, sys
    queue.put(("PYTHONUNBUFFERED" in os.environ, sys.stdout.write_through))

context = multiprocessing.get_context({method!r})
queue = context.SimpleQueue()
process = context.Process(target=look, args=[queue]); process.start(); process.join()
queue.get(), os.environ["PYTHONUNBUFFERED"]
"""
    assert await value(session, code) == "((False, False), '1')"
