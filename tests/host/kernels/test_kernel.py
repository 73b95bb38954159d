"""What a kernel may cost its host: memory stays where it was, whatever the code shows."""

from __future__ import annotations

import asyncio
import errno
import json
import subprocess
import sys
import threading
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from cellblock import BusyError, Host, Limits
from cellblock.host.kernels import stopping
from cellblock.host.kernels.kernel import Kernel
from cellblock.host.output import spill
from cellblock.host.output.disk import DiskThread
from clocks import hurry_stopping
from processes import eventually

ROOM = 64 * 1024
"""KiB that the host's memory may grow at most, at its peak."""

MEASURE = """
import asyncio, json, re, sys, tempfile
from pathlib import Path
from cellblock import Host

def status(name):
    return int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1])

async def main():
    directory = Path(tempfile.mkdtemp(dir={directory!r}))
    spill = directory / "spill" if {spill} else None
    async with Host() as host, host.session(images_dir=directory, spill_dir=spill, recovery="none") as session:
        await session.execute("print(1)\\n1")
        open("/proc/self/clear_refs", "w").write("5")
        before = status("VmRSS")
        if {stream}:
            async for event in session.stream({code!r}, timeout={timeout}):
                result = event
        else:
            result = await session.execute({code!r}, timeout={timeout})
        grown = status("VmHWM") - before
        after = await session.execute("40 + 2")
        text = result.text or ""
        print(json.dumps({{
            "grown": grown, "status": result.status, "truncated": result.truncated, "head": text[:100], "tail": text[-100:],
            "spilled": [path.stat().st_size for path in result.spilled], "after": after.return_value,
            "outputs": len(result.outputs), "recovery": result.recovery,
        }}))

asyncio.run(main())
"""

FLOODS = {
    "prints without end": ("i = 0\nwhile True:\n    print('line', i)\n    i += 1", "timeout"),
    "one line of 256 MB": ("print('a' + 'x' * 2**28 + 'z')", "success"),
    "256 MB in lines": ("for i in range(2**18): print('x' * 1023)", "success"),
    "256 MB from a subprocess": ("!head -c 256000000 /dev/zero | tr '\\0' x", "success"),
    "500 MB of html": ("from IPython.display import HTML, display\ndisplay(HTML('<b>' + 'x' * 500_000_000))", "success"),
    "500 MB of html as a value": ("class C:\n    def _repr_html_(self): return 'x' * 500_000_000\nC()", "success"),
    "a hundred thousand displays": ("for i in range(100_000): display({'text/html': 'x' * 500}, raw=True)", "success"),
    "hundreds of thousands of tiny prints to both streams": (
        "import sys\nfor i in range(150_000):\n    print('o', end='')\n    print('e', end='', file=sys.stderr)",
        "success",
    ),
    "displays that are never completed": (
        "for i in range(300): display({f'text/x{i}': 'x' * 1_000_000}, raw=True)",
        "success",
    ),
    "updates of one display": (
        "h = display('x', display_id=True)\nfor i in range(300): h.update({'text/plain': 'x' * 1_000_000}, raw=True)",
        "success",
    ),
    "an error of 500 MB": ("raise ValueError('x' * 500_000_000)", "error"),
    "a background thread": (
        "import threading\ndef flood():\n    while True: print('x' * 1000)\n"
        "threading.Thread(target=flood, daemon=True).start()\nimport time; time.sleep(1.5)",
        "success",
    ),
}
QUARTER = FLOODS["256 MB in lines"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize(
    ("code", "status", "stream", "spill"),
    [*((*flood, False, False) for flood in FLOODS.values()), (*QUARTER, True, False), (*QUARTER, False, True)],
    ids=[*FLOODS, "256 MB in a stream", "256 MB in a file"],
)
@pytest.mark.sampled(3)
def test_a_flood_costs_the_host_at_most_64_mb(tmp_path: Path, code: str, status: str, stream: bool, spill: bool) -> None:
    timeout = 2 if status == "timeout" else 100
    source = MEASURE.format(directory=str(tmp_path), code=code, stream=stream, spill=spill, timeout=timeout)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=115, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    measured = json.loads(done.stdout.splitlines()[-1])
    assert (measured["status"], measured["after"]) == (status, "42")
    assert measured["grown"] < ROOM, measured
    assert measured["spilled"] == ([2**28] if spill else [])
    assert measured["truncated"] or code != QUARTER[0]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Whether the disk takes what is written to it."""
    works, write = threading.Event(), spill._File.write

    def stall(file: Any, data: bytes) -> None:
        works.wait(30)
        write(file, data)

    monkeypatch.setattr(spill._File, "write", stall)
    monkeypatch.setattr(spill, "_MAX_WAITING", 1_000_000)
    monkeypatch.setattr(spill, "_PATIENCE", 0.1)
    return works


@pytest.mark.slow
async def test_the_kernel_waits_for_a_slow_disk_and_nobody_else_does(
    disk: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill, "_PATIENCE", 30)
    threads: list[DiskThread] = []
    monkeypatch.setattr(spill, "DiskThread", lambda: threads.append(DiskThread()) or threads[-1])  # type: ignore[func-returns-value]
    async with (
        Host(isolate="none") as host,
        host.session(working_dir=None, spill_dir=tmp_path, limits=Limits(text=1000)) as session,
        host.session(working_dir=None) as other,
    ):
        line = "x" * 99
        cell = asyncio.create_task(session.execute(f"for _ in range(100_000): print({line!r})"))
        await eventually(lambda: threads and threads[0].waiting > 1_000_000)
        seen = [*range(10)]
        while len({*seen[-10:]}) > 1:  # until nothing more comes
            assert (await other.execute("import time; time.sleep(0.01)")).ok
            seen.append(threads[0].waiting)
        assert not cell.done()
        assert threads[0].waiting < 5_000_000
        disk.set()
        (path,) = (await cell).spilled
        assert path.read_text() == f"{line}\n" * 100_000


@pytest.mark.slow
async def test_a_cell_that_waits_for_a_disk_can_be_stopped_and_keeps_its_variables(
    disk: threading.Event, tmp_path: Path
) -> None:
    async with (
        Host(isolate="none") as host,
        host.session(working_dir=None, spill_dir=tmp_path, limits=Limits(text=1000)) as session,
    ):
        assert (await session.execute("kept = 1")).ok
        result = await session.execute("while True: print('x' * 1000)", timeout=0.3)
        disk.set()
        assert (result.status, result.recovery) == ("timeout", "interrupted")
        assert "the disk has not written it for 0.1 s" in result.stderr
        assert (await session.execute("kept")).return_value == "1"


async def test_what_cannot_be_kept_for_a_later_host_was_not_said(zygote_host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes the next cell and the next checkpoint."""
    async with zygote_host.session(recovery="none") as session:
        await session.execute("x = 1")
        kernel = session._kernels.current
        assert kernel is not None

        def fail(_frame: bytes) -> None:
            raise OSError(errno.ENOSPC, "no space")

        with monkeypatch.context() as full:
            full.setattr(kernel.channel._line, "queue", fail)
            for said in (session.execute("x = 2"), session.checkpoint(), session.complete("x", 1)):
                with pytest.raises(BusyError, match=r"\(no space\), so nothing was done"):
                    await said
        assert (await session.execute("x")).return_value == "1"
        await (await session.checkpoint()).drop()


async def test_a_reply_of_a_kernel_that_is_being_killed_does_not_end_its_cell(
    zygote_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The death does, and the result says how the session continues."""

    async def kill_late(kernel: Kernel) -> None:
        (tmp_path / "end").touch()
        replied = kernel.count + 1
        await eventually(lambda: kernel.count == replied)
        await kernel.kill()

    hurry_stopping(monkeypatch)
    *before, _ = stopping._LADDER
    monkeypatch.setattr(stopping, "_LADDER", (*before, ("restarted", kill_late, 1.0)))
    code = """
        import os, signal, time
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        x = 2
        while not os.path.exists("end"):
            time.sleep(0.01)
    """
    async with zygote_host.session(working_dir=tmp_path) as session:
        await session.execute("x = 1")
        result = await session.execute(dedent(code), timeout=0.3)
        assert (result.status, result.recovery) == ("timeout", "restored")
        assert (await session.execute("x")).return_value == "1"
