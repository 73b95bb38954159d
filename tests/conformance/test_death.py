"""A kernel that dies gives a result that names the cause, and the session goes on with a fresh one."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock import CodeExecutionResult, Host, KernelDiedError, Session
from cells import ok, value
from processes import eventually
from suite import first_quick


@pytest.fixture
async def session(host: Host, tmp_path: Path) -> AsyncIterator[Session]:
    """A session that makes no checkpoints, so that it gets a fresh kernel if one dies."""
    async with host.session(images_dir=tmp_path / "images", recovery="none") as session:
        yield session


# What kills a kernel → what the result must say of it.
# The worker ends when it finds that its channel is gone, and on a slow machine before the host has looked into it.
CHANNEL = "channel|exited with status 1"

DEATHS = {
    "segmentation fault": ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    "os._exit": ("import os; os._exit(3)", "exited with status 3"),
    "exit in C": ("import ctypes; ctypes.CDLL(None)._exit(4)", "exited with status 4"),
    "abort": ("import os; os.abort()", "SIGABRT"),
    "kill -9": ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
    "kill -TERM": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "SIGTERM"),
    "bus error": ("import os, signal; os.kill(os.getpid(), signal.SIGBUS)", "SIGBUS"),
    "a child's kill": (
        "import subprocess; subprocess.run('kill -9 $PPID', shell=True)\nimport time; time.sleep(60)",
        "SIGKILL",
    ),
    "a thread": (
        "import threading, os, time\nthreading.Thread(target=os._exit, args=(5,)).start()\ntime.sleep(60)",
        "status 5",
    ),
    "kill of its group": ("import os; os.killpg(0, 9)", "SIGKILL"),
    "kill of its parent": ("import os, time; os.kill(os.getppid(), 9); time.sleep(60)", "killed"),
    "kill of everything it may": (
        "import os, time\nfor pid in (os.getpid(), os.getppid()):\n    os.kill(pid, 9)\ntime.sleep(60)",
        "killed",
    ),
    "closing its channel": ("import os; os.close(3); print('x')", CHANNEL),
    "shutting its channel down": (
        "import socket; s = socket.socket(fileno=3); s.shutdown(socket.SHUT_RDWR); print('x')",
        CHANNEL,
    ),
    "a null device over its channel": ("import os; os.dup2(os.open('/dev/null', os.O_RDWR), 3); print('x')", CHANNEL),
    "a pipe over its channel": ("import os; r, w = os.pipe(); os.dup2(w, 3); print('x')", CHANNEL),
    "garbage on its channel": ("import os, time; os.write(3, b'\\xff' * 100); time.sleep(60)", "protocol"),
    "text on its channel": ("import os, time; os.write(3, b'GET / HTTP/1.1\\r\\n' * 9); time.sleep(60)", "protocol"),
    "a frame of no known type": (
        "import os, time; h = b'{\"type\":\"pwn\"}'\nos.write(3, len(h).to_bytes(4, 'big') + bytes(4) + h); time.sleep(60)",
        "protocol",
    ),
    "a frame out of turn": (
        'import os, time; h = b\'{"type":"ready","version":1}\'\n'
        "os.write(3, len(h).to_bytes(4, 'big') + bytes(4) + h); time.sleep(60)",
        "protocol",
    ),
    "a question nobody answers": (
        'import os, time; h = b\'{"type":"input","number":1,"password":false,"sizes":[0]}\'\n'
        "os.write(3, len(h).to_bytes(4, 'big') + bytes(4) + h); time.sleep(60)",
        "input",
    ),
}

OF_PROCESSES = {
    "segmentation fault",
    "os._exit",
    "kill -9",
    "kill of its parent",
    "kill of everything it may",
    "a pipe over its channel",
}
"""Deaths that reach the host in different ways, by which process is left to say what happened."""


async def died(session: Session, code: str, cause: str) -> CodeExecutionResult:
    """Run a cell under which the kernel dies, and check that the session goes on."""
    await ok(session, "lost = 1")
    result = await session.execute(f"import time\nprint('last words')\ntime.sleep(0.05)\n{code}", timeout=30)
    assert result.status == "died", result.text
    assert result.output == "last words\n"
    assert result.error is not None
    assert result.error.ename == "KernelDied"
    assert re.search(cause, result.error.evalue)
    assert "lost" in result.error.evalue
    assert result.recovery == "restarted"
    assert result.state_lost
    assert result.text is not None
    assert re.search(cause, result.text)
    assert result.execution_count is None
    after = await session.execute("lost")
    assert after.status == "error"
    assert after.error is not None
    assert after.error.ename == "NameError"
    assert not after.state_lost
    assert await value(session, "6 * 7") == 42
    return result


@pytest.mark.parametrize(
    ("code", "cause"),
    first_quick(
        [
            pytest.param(*death, id=name, marks=pytest.mark.launcher if name in OF_PROCESSES else ())
            for name, death in DEATHS.items()
        ],
        4,
    ),
)
async def test_a_death_names_its_cause_and_the_session_goes_on(session: Session, code: str, cause: str) -> None:
    await died(session, code, cause)


@pytest.mark.launcher
@pytest.mark.parametrize("end", first_quick(["os._exit(1)", "os.abort()", "os.kill(os.getpid(), 9)", "os.killpg(0, 9)"], 2))
async def test_nothing_is_lost_of_what_was_printed_just_before_the_process_ended_itself(session: Session, end: str) -> None:
    result = await session.execute(f"import os\nfor i in range(1000):\n    print(i)\n{end}")
    assert result.status == "died"
    assert result.output == "".join(f"{i}\n" for i in range(1000))


async def test_a_death_is_one_whatever_goes_on(session: Session) -> None:
    """While input is awaited, in a stream, with a traceback, and by a question."""
    # A segmentation fault shows where python was.
    result = await session.execute("import ctypes\ndef crash():\n    ctypes.string_at(0)\ncrash()")
    assert "Segmentation fault" in result.stderr
    assert "in crash" in result.stderr

    # A death while input is awaited is a death.
    async def answer(_prompt: str) -> str:
        await asyncio.sleep(60)
        return "never"

    code = "import threading, os, time\nthreading.Timer(0.1, os._exit, (6,)).start()\ninput('? ')"
    result = await session.execute(code, on_input=answer)
    assert result.status == "died"
    assert await value(session, "1") == 1
    # A death during a stream ends it with a result.
    events = [event async for event in session.stream("print('a')\nimport os; os._exit(1)")]
    assert isinstance(events[-1], CodeExecutionResult)
    assert events[-1].status == "died"
    assert events[-1].output == "a\n"
    # What a kernel said before it died between cells is shown.
    code = "import threading, os\nthreading.Timer(0.05, lambda: (os.write(2, b'famous last words\\n'), os._exit(7))).start()"
    await ok(session, code)
    await eventually(lambda: session._kernels.current is not None and session._kernels.current.death is not None)
    assert "famous last words" in (await session.execute("1")).stderr
    # A question to a kernel that dies of it is an error and the session goes on.
    await ok(session, "import os\nclass Deadly:\n    def __dir__(self): os._exit(1)\nd = Deadly()")
    with pytest.raises(KernelDiedError, match="exited with status 1"):
        await session.complete("d.")
    result = await session.execute("1")
    assert result.return_value == "1"
    assert result.state_lost


@pytest.mark.slow
@pytest.mark.launcher
async def test_an_exit_handler_that_hangs_does_not_keep_a_session_from_closing(session: Session) -> None:
    await ok(session, "import atexit, time; atexit.register(time.sleep, 1000)")
    await session.close()


@pytest.mark.launcher
async def test_exit_handlers_run_and_files_are_written_when_a_session_closes(session: Session, tmp_path: object) -> None:
    await ok(session, f"import atexit, pathlib; atexit.register(pathlib.Path({str(tmp_path)!r}, 'bye').touch)")
    await ok(session, f"file = open({str(tmp_path)!r} + '/unflushed', 'w'); file.write('kept')")
    await session.close()
    assert os.path.exists(f"{tmp_path}/bye")
    with open(f"{tmp_path}/unflushed") as file:
        assert file.read() == "kept"


@pytest.mark.launcher
async def test_finalizers_run_and_temporary_files_are_removed_when_a_session_closes(
    session: Session, tmp_path: object
) -> None:
    await ok(
        session,
        f"""
        class Held:
            def __init__(self, name): self.name = name
            def __del__(self): open({str(tmp_path)!r} + "/" + self.name, "w").close()
        held = Held("variable")
        """,
    )
    await ok(session, "Held('value')")  # in Out
    temporary = await value(session, "get_ipython().mktempfile('text')")
    await session.close()
    assert os.path.exists(f"{tmp_path}/variable")
    assert os.path.exists(f"{tmp_path}/value")
    assert not os.path.exists(os.path.dirname(temporary))


@pytest.mark.launcher
async def test_a_kernel_that_dies_between_cells_is_replaced_and_the_next_result_says_so(session: Session) -> None:
    await ok(session, "lost = 1\nimport threading, os\nthreading.Timer(0.05, os._exit, (7,)).start()")
    await eventually(lambda: session._kernels.current is not None and session._kernels.current.death is not None)
    result = await session.execute("'lost' in globals()")
    assert result.status == "success"
    assert result.return_value == "False"
    assert result.state_lost
    assert result.recovery == "restarted"
    assert result.text is not None
    assert "exited with status 7" in result.text
    assert "lost" in result.stderr
    assert not (await ok(session, "1")).state_lost


async def test_a_hundred_deaths_in_a_row_leave_nothing(session: Session) -> None:
    """Nor does a forged reply, or garbage without end."""
    for _ in range(10):
        assert (await session.execute("import os; os._exit(1)")).status == "died"
    assert await value(session, "1") == 1
    # A reply that the code forged costs only its own kernel.
    forged = b'{"type":"reply","execution_count":1,"ename":null}'
    code = f"import os; h = {forged!r}\nos.write(3, len(h).to_bytes(4, 'big') + bytes(4) + h)"
    await session.execute(code)
    for _ in range(3):
        await session.execute("1", timeout=5)
    # The kernel that forged may be out of step with its own replies; that ends with it.
    await session.reset()
    assert await value(session, "41 + 1") == 42
    # A flood of garbage from a process that holds the channel costs only its own kernel.
    code = (
        "import os, time\nfd = os.dup(3)\nif os.fork() == 0:\n    while True: os.write(fd, os.urandom(65536))\ntime.sleep(60)"
    )
    result = await session.execute(code, timeout=10)
    assert result.status == "died"
    assert await value(session, "1") == 1


@pytest.mark.launcher
async def test_processes_that_a_dead_kernel_left_are_ended(session: Session) -> None:
    code = """
import os, subprocess
a = subprocess.Popen(["sleep", "60"])
b = subprocess.Popen(["setsid", "--fork", "sleep", "61"])
os._exit(1)
"""
    # That nothing of it is left is what is checked after every test.
    assert (await session.execute(code)).status == "died"


@pytest.mark.parametrize("number", first_quick([signal.SIGHUP, signal.SIGUSR1, signal.SIGPIPE, signal.SIGQUIT], 2))
async def test_a_signal_that_ends_a_program_is_named(session: Session, number: signal.Signals) -> None:
    result = await session.execute(
        f"import os, signal\nsignal.signal({int(number)}, signal.SIG_DFL)\nos.kill(os.getpid(), {int(number)})"
    )
    assert result.error is not None
    assert number.name in result.error.evalue
