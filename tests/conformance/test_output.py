"""Everything that a cell shows is heard, in order."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

from cellblock import CodeExecutionChunk, CodeExecutionResult, Session
from cells import ok, value
from processes import eventually
from suite import first_quick

HEARD = {
    "print": ("print('heard')", "heard\n"),
    "print without a newline": ("print('heard', end='')", "heard"),
    "write": ("import sys; _ = sys.stdout.write('heard')", "heard"),
    "bytes": ("import sys; _ = sys.stdout.buffer.write(b'heard\\n')", "heard\n"),
    "the original stdout": ("import sys; _ = sys.__stdout__.write('heard\\n')", "heard\n"),
    "a descriptor": ("import os; _ = os.write(1, b'heard\\n')", "heard\n"),
    "C code": ("import ctypes; _ = ctypes.CDLL(None).printf(b'heard\\n')", "heard\n"),
    "C code without a newline": ("import ctypes; _ = ctypes.CDLL(None).printf(b'heard')", "heard"),
    "a subprocess": ("import subprocess; _ = subprocess.run(['echo', 'heard'])", "heard\n"),
    "a command": ("!echo heard", "heard\n"),
    "os.system": ("import os; _ = os.system('echo heard')", "heard\n"),
    "a thread": ("import threading; t = threading.Thread(target=print, args=('heard',)); t.start(); t.join()", "heard\n"),
    "a fork": ("import os\nif os.fork() == 0:\n    print('heard', flush=True)\n    os._exit(0)\n_ = os.wait()", "heard\n"),
    "a fork that runs to the end of the cell": (
        "import os\nif os.fork():\n    _ = os.wait()\nelse:\n    print('heard')",
        "heard\n",
    ),
    "a logger": ("import logging, sys\nlogging.basicConfig(stream=sys.stdout)\nlogging.error('heard')", "ERROR:root:heard\n"),
    "an executor": (
        "import asyncio\nawait asyncio.get_running_loop().run_in_executor(None, print, 'heard')",
        "heard\n",
    ),
    "an exec'ed program": (
        "import os\nif os.fork() == 0:\n    os.execvp('echo', ['echo', 'heard'])\n_ = os.wait()",
        "heard\n",
    ),
}


async def test_output_is_heard(session: Session) -> None:
    """Whoever writes it, in the order in which it was written, and on which stream."""
    for kind, (code, output) in HEARD.items():
        result = await ok(session, code)
        assert (kind, result.output, result.stderr) == (kind, output, "")
    # What goes to stderr is told apart.
    for code in ["import os; _ = os.write(2, b'e\\n')", "import sys; print('e', file=sys.stderr)", "!echo e >&2"]:
        result = await ok(session, code)
        assert (result.output, result.stderr, result.text) == ("", "e\n", "e")
    # Output comes in the order in which it was written.
    code = """
import os, subprocess, sys
from IPython.display import display
for i in range(20):
    print("print", i)
    os.write(1, b"write %d\\n" % i)
    subprocess.run(["echo", "echo", str(i)])
    display(i)
    sys.stderr.write(f"error {i}\\n")
"""
    result = await ok(session, code)
    expected = "".join(f"print {i}\nwrite {i}\necho {i}\n{i}\nerror {i}\n" for i in range(20))
    assert result.text == expected.rstrip()
    # Threads that print without end do not keep others waiting.
    code = """
import os, threading
ended = threading.Event()
def flood():
    while not ended.is_set():
        print("x" * 1000)
threads = [threading.Thread(target=flood) for _ in range(2)]
for thread in threads: thread.start()
for _ in range(20):
    os.write(2, b"2")
ended.set()
for thread in threads: thread.join()
"""
    await ok(session, code, timeout=30)
    # A frame of output larger than a pipe is heard whole.
    result = await ok(session, "import os\ndata = b'x' * 1_500_000\nwhile data: data = data[os.write(1, data):]")
    assert result.output == "x" * 1_500_000


THIRDS = {
    "os.write": "os.write(1, b'three ')",
    "a fork": "os.waitpid(os.fork() or (os.write(1, b'three '), os._exit(0)), 0)",
    "a subprocess": "subprocess.run(['printf', 'three '])",
}


@pytest.mark.parametrize("third", first_quick(THIRDS.values()), ids=THIRDS)
async def test_the_order_stays_however_long_the_host_is_busy(session: Session, tmp_path: Path, third: str) -> None:
    code = f"""
import os, pathlib, subprocess
here = pathlib.Path({str(tmp_path)!r})
here.joinpath("ready").touch()
while not here.joinpath("go").exists():
    pass
os.write(1, b"one ")
print("two", end=" ")
{third}
print("four", end=" ")
_ = os.write(1, b"five")
"""
    cell = asyncio.create_task(ok(session, code))
    await eventually((tmp_path / "ready").exists)
    (tmp_path / "go").touch()
    time.sleep(0.4)  # the host does something else, and reads nothing
    assert (await cell).output == "one two three four five"


async def test_output_between_cells_comes_with_the_next_result(session: Session, tmp_path: Path) -> None:
    """Of tasks, threads and processes."""
    # Output of a background task between cells comes with the next result.
    code = f"""
import asyncio, pathlib
async def later():
    await asyncio.sleep(0.05)
    print('background')
    pathlib.Path({str(tmp_path)!r}, 'printed').touch()
task = asyncio.create_task(later())
"""
    assert (await ok(session, code)).text is None
    await eventually((tmp_path / "printed").exists)
    assert (await ok(session, "print('next')")).text == "background\nnext"
    # Output between cells is in the chunks of the next one.
    code = f"""
import pathlib, threading
from IPython.display import display
def later():
    print("thread")
    display("value")
    pathlib.Path({str(tmp_path)!r}, "shown").touch()
threading.Timer(0.05, later).start()
"""
    await ok(session, code)
    await eventually((tmp_path / "shown").exists)
    *chunks, result = [event async for event in session.stream("print('next')")]
    assert isinstance(result, CodeExecutionResult)
    assert (result.text or "").startswith("thread\n'value'\nnext")  # it may say that a thread ran before it
    assert [(chunk.text, chunk.name) for chunk in chunks if isinstance(chunk, CodeExecutionChunk)] == [
        ("thread\n", "stdout"),
        ("'value'\n", None),
        ("next\n", "stdout"),
    ]
    # Output of a thread and a process between cells comes with the next result.
    code = f"""
import os, subprocess, threading
os.chdir({str(tmp_path)!r})
def later():
    print('thread')
    subprocess.run('echo process; touch done', shell=True)
thread = threading.Timer(0.05, later)
thread.start()
"""
    await ok(session, code)
    await eventually((tmp_path / "done").exists)
    assert ((await ok(session, "print('next')")).text or "").startswith("thread\nprocess\nnext")  # as above


@pytest.mark.launcher
@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
async def test_multiprocessing_children_are_heard(session: Session, tmp_path: Path, method: str) -> None:
    (tmp_path / "work.py").write_text("def f(n):\n    print('child', n, flush=True)\n    return n * n\n")
    code = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
import multiprocessing, work
context = multiprocessing.get_context({method!r})
process = context.Process(target=work.f, args=(7,)); process.start(); process.join()
with context.Pool(2) as pool:
    squares = pool.map(work.f, range(4))
print(process.exitcode, squares)
"""
    result = await ok(session, code, timeout=60)
    assert sorted(result.output.splitlines()[:-1]) == sorted(["child 7", *(f"child {n}" for n in range(4))])
    assert result.output.splitlines()[-1] == "0 [0, 1, 4, 9]"
    assert result.stderr == ""


async def test_a_forked_child_does_not_disturb_the_kernel(session: Session) -> None:
    """Whether it fails or displays something."""
    # A forked child that fails shows its traceback and ends.
    code = """
import os
pid = os.fork()
if pid == 0:
    raise ValueError('in the child')
os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""
    result = await ok(session, code)
    assert result.return_value == "1"
    assert "ValueError: in the child" in result.stderr
    assert await value(session, "6 * 7") == 42
    # A forked child that displays does not disturb the kernel.
    code = """
import os
from IPython.display import display, clear_output
pid = os.fork()
if pid == 0:
    display("in the child"); clear_output(); input
    os._exit(0)
_ = os.waitpid(pid, 0)
display("in the parent")
"""
    result = await ok(session, code)
    assert result.text is not None
    assert result.text.endswith("'in the parent'")
    assert await value(session, "6 * 7") == 42


async def test_carriage_returns_are_shown_as_a_terminal_shows_them(session: Session) -> None:
    """Also those of a progress bar."""
    result = await ok(session, "print('10%', end='\\r'); print('100%', end='\\r'); print('done')")
    assert result.text == "done"
    assert result.output == "10%\r100%\rdone\n"
    # A progress bar is one line.
    pytest.importorskip("tqdm")
    result = await ok(session, "from tqdm import tqdm\nfor _ in tqdm(range(50), mininterval=0): pass")
    assert result.text is not None
    assert "100%" in result.text
    assert "\n" not in result.text
    assert result.stderr.count("\r") > 10


async def test_streams_can_be_closed_replaced_redirected_and_captured(session: Session) -> None:
    """Text that is no UTF-8 is shown as far as it goes."""
    # Redirected output goes where it was redirected.
    code = """
import contextlib, io
buffer = io.StringIO()
with contextlib.redirect_stdout(buffer):
    print('caught')
buffer.getvalue()
"""
    result = await ok(session, code)
    assert result.output == ""
    assert result.return_value == "'caught\\n'"
    # Captured cells show nothing.
    assert (await ok(session, "%%capture got\nprint('caught')\ndisplay(1)\n2")).text is None
    assert await value(session, "got.stdout") == "caught\n"
    # Text that is no utf 8 is shown as far as it goes.
    result = await ok(session, "import os\n_ = os.write(1, b'a\\xffb\\n')\nprint('\\ud800 ü 😀')")
    assert result.output == "a\ufffdb\n\\ud800 ü 😀\n"
    # A character cut in two writes is whole.
    code = "import os, time\nfor byte in '😀\\n'.encode():\n    os.write(1, bytes([byte]))\n    time.sleep(0.01)"
    assert (await ok(session, code)).output == "😀\n"
    # A cell that closes or replaces its streams is still heard.
    await ok(session, "import sys\nsys.stdout.close(); sys.stderr.close()\nprint('still')")
    assert (await ok(session, "print('here')")).text == "here"
    await ok(session, "import io\nkeep = sys.stdout\nsys.stdout = io.StringIO()\nprint('caught')")
    assert (await ok(session, "got = sys.stdout.getvalue(); sys.stdout = keep; print(got, end='')")).text == "caught"
    await ok(session, "sys.stdout = None; sys.stderr = 5")
    assert await value(session, "sys.stdout = sys.__stdout__; 1") == 1


async def test_chunks_arrive_while_the_cell_runs(session: Session) -> None:
    """Also a text without the end of its line; a stream without chunks has a result."""
    code = "import time\nfor i in range(3):\n    print(i)\n    time.sleep(0.15)"
    seen: list[str] = []
    async for event in session.stream(code):
        if isinstance(event, CodeExecutionChunk):
            seen.append(event.text)
            assert event.name == "stdout"
        else:
            assert isinstance(event, CodeExecutionResult)
            assert event.output == "".join(seen) == "0\n1\n2\n"
    assert seen == ["0\n", "1\n", "2\n"]
    # A print without a newline arrives while the cell runs.
    stream = session.stream("import time\nprint('working...', end='')\ntime.sleep(60)")
    chunk = await asyncio.wait_for(anext(stream), 5)
    assert isinstance(chunk, CodeExecutionChunk)
    assert chunk.text == "working..."
    await stream.aclose()
    # The result of a stream without chunks is all that comes.
    events = [event async for event in session.stream("print(1)\n2", chunks=False)]
    assert len(events) == 1
    assert isinstance(events[0], CodeExecutionResult)
    assert events[0].text == "1\n2"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
async def test_a_kernel_between_cells_has_one_thread(session: Session) -> None:
    await ok(session, "for i in range(1000): print(i)")
    assert await value(session, "import os, time; time.sleep(0.2); len(os.listdir('/proc/self/task'))") == 1
