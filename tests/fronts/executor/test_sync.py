"""`SyncCodeExecutor`: everything that `CodeExecutor` does, without an event loop."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cellblock import (
    CodeExecutionChunk,
    CodeExecutionError,
    CodeExecutionResult,
    CodeExecutor,
    ExecutionTimeoutError,
    ProcessError,
    StateError,
    SyncApprovalRequest,
    SyncCodeExecutor,
    SyncFiles,
)
from cellblock.common import loop_thread
from cellblock.fronts.executor.sync import SyncProcess, SyncSessionFiles
from cellblock.host.files import Files
from cellblock.host.programs.process import Process
from cellblock.host.programs.program_files import SessionFiles
from cellblock.model.programs import ProgramOutput
from processes import eventually


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncCodeExecutor]:
    """An executor whose commands need approval."""
    with SyncCodeExecutor(
        working_dir=tmp_path_factory.mktemp("workspace"), approve_shell_cmds=True, recovery="none"
    ) as executor:
        executor.execute("!true")  # the first decision opens the record of decisions
        yield executor
    loop_thread.shared().close()


def test_it_takes_the_same_arguments_and_has_the_same_methods() -> None:
    assert inspect.signature(SyncCodeExecutor) == inspect.signature(CodeExecutor)
    pairs = ((SyncCodeExecutor, CodeExecutor), (SyncFiles, Files), (SyncSessionFiles, SessionFiles))
    for ours, theirs in pairs:
        for name, method in inspect.getmembers(theirs, inspect.isfunction):
            if not name.startswith("_") and name not in ("cancel", "close", "unpacked"):  # the last is for the host itself
                assert [*inspect.signature(getattr(ours, name)).parameters] == [*inspect.signature(method).parameters]


@pytest.mark.slow
def test_a_connection_to_a_server_of_the_code_blocks(executor: SyncCodeExecutor) -> None:
    made = executor.execute("import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1])")
    port = int(made.text or "")
    assert port in executor.ports()
    with executor.connect(port) as connection:
        connection.settimeout(10)
        executor.execute("accepted, _ = s.accept(); accepted.sendall(b'hello'); accepted.close(); s.close()")
        assert connection.recv(100) == b"hello"


def test_an_async_with_says_what_to_write(executor: SyncCodeExecutor) -> None:
    with pytest.raises(TypeError, match="'with' instead of 'async with', and no 'await'; or use CodeExecutor, whose methods"):
        executor.__aenter__().send(None)


def test_variables_stay_and_errors_are_raised(executor: SyncCodeExecutor) -> None:
    executor.execute("x = 20")
    assert executor.execute("x + 1").return_value == "21"
    with pytest.raises(CodeExecutionError, match="ZeroDivisionError"):
        executor.execute("1 / 0")
    with pytest.raises(ExecutionTimeoutError):
        executor.execute("import time; time.sleep(60)", timeout=0.1)
    executor.reset()
    with pytest.raises(CodeExecutionError, match="NameError"):
        executor.execute("x")


def test_values_and_files(executor: SyncCodeExecutor) -> None:
    executor.put("numbers", [1, 2])
    assert executor.get("numbers") == [1, 2]
    executor.files.write("a/b.txt", "text")
    assert executor.execute("print(open('a/b.txt').read())").text == "text"
    assert [info.path for info in executor.files.list("a")] == ["a/b.txt"]
    assert executor.files.untar(b"".join(executor.files.tar("a")), "c").files == 1


def test_output_is_streamed_and_calls_are_decided_about(executor: SyncCodeExecutor) -> None:
    said: list[str] = []
    code = "print('before')\n!echo allowed\ntry:\n    !echo denied\nexcept PermissionError:\n    pass"
    for event in executor.stream(code, chunks=True):
        match event:
            case SyncApprovalRequest():
                said.append(event.tool_args["cmd"])
                event.accept() if "allowed" in event.tool_args["cmd"] else event.reject()
            case CodeExecutionChunk():
                said.append(event.text.strip())
            case CodeExecutionResult():
                assert event.output == "before\nallowed\n"
    assert [text for text in said if text][:4] == ["before", "echo allowed", "allowed", "echo denied"]


def test_leaving_a_stream_stops_the_code(executor: SyncCodeExecutor) -> None:
    for _ in executor.stream("print('begun', flush=True)\nimport time; time.sleep(60)", chunks=True):
        break
    assert executor.execute("1 + 1").return_value == "2"


def test_another_thread_stops_the_code(executor: SyncCodeExecutor) -> None:
    assert executor.cancel() is False
    stopped = threading.Thread(target=lambda: asyncio.run(eventually(executor.cancel)))
    stopped.start()
    assert executor.execute("import time; time.sleep(60)").status == "interrupted"
    stopped.join()


def test_many_threads_use_one_executor(executor: SyncCodeExecutor) -> None:
    with ThreadPoolExecutor(4) as threads:
        results = threads.map(lambda number: executor.execute(f"{number} * 2").return_value, range(12))
    assert [*results] == [str(number * 2) for number in range(12)]


@pytest.fixture
def own(executor: SyncCodeExecutor, tmp_path: Path) -> Iterator[SyncCodeExecutor]:
    """An executor of one test: what starts programs stays with its session."""
    with SyncCodeExecutor(working_dir=tmp_path, recovery="none") as own:
        yield own


@pytest.mark.slow
def test_programs_run_beside_the_kernel(own: SyncCodeExecutor) -> None:
    seen: list[ProgramOutput] = []
    done = own.exec("cat; exit 3", input="given", on_output=seen.append)
    assert (done.out, done.exit_code, [piece.data for piece in seen]) == ("given", 3, [b"given"])
    process = own.spawn(["cat"], stdin=True, label="cat")
    assert process.info in own.processes()
    process.write("a\n")
    assert [piece.data for piece in process.read(0)] == [b"a\n"]
    assert process.output(2).pieces == ()
    process.close_stdin()
    assert [piece.data for piece in process] == [b"a\n"]
    assert process.wait().ok
    assert process.poll() == process.wait()
    shell = own.spawn("read line; stty size; sleep 1000", pty=(10, 20))
    shell.resize(30, 40)
    shell.write("\n")
    text = b""
    for piece in shell:
        text += piece.data
        if b"30 40" in text:
            break
    with pytest.raises(TimeoutError):
        shell.wait(0.01)
    own.process(shell.id).signal(signal.SIGKILL)
    assert shell.wait(10).signal == signal.SIGKILL
    assert own.spawn(["sleep", "1000"]).stop().status == "cancelled"
    with pytest.raises(ProcessError):
        own.spawn(["no-such-program"])


def test_what_a_process_offers_does_not_need_a_loop() -> None:
    for name in ("read", "output", "write", "stop", "wait", "close_stdin", "resize", "signal"):
        ours, theirs = getattr(SyncProcess, name), getattr(Process, name)
        assert [*inspect.signature(ours).parameters] == [*inspect.signature(theirs).parameters]
        assert not inspect.iscoroutinefunction(ours)


def test_files_as_programs_see_them(own: SyncCodeExecutor) -> None:
    own.fs.write_text("/tmp/notes/a.txt", "text")
    assert own.exec(["cat", "/tmp/notes/a.txt"]).out == "text"
    assert [one.path for one in own.fs.list("/tmp/notes")] == ["/tmp/notes/a.txt"]
    with pytest.raises(FileNotFoundError):
        own.fs.read_bytes("/tmp/notes/none")


def test_input_is_answered(executor: SyncCodeExecutor) -> None:
    assert executor.execute("input('name? ')", on_input=lambda prompt: prompt + "me").return_value == "'name? me'"


async def test_inside_a_running_event_loop(executor: SyncCodeExecutor) -> None:
    assert executor.execute("6 * 7").return_value == "42"


@pytest.mark.slow
def test_ctrl_c_stops_the_code_and_the_end_of_the_program_everything(tmp_path: Path) -> None:
    program = (
        "import os, signal, threading, time\n"
        "from cellblock import SyncCodeExecutor\n"
        "executor = SyncCodeExecutor()\n"
        "executor.start()\n"
        "executor.execute('kept = 1')\n"
        "def press():\n"
        "    while not os.path.exists('running'): time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=press).start()\n"
        "try:\n"
        '    executor.execute(\'open("running", "w"); import time; time.sleep(60)\')\n'
        "except KeyboardInterrupt:\n"
        "    print(executor.execute('kept').return_value)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=dict(os.environ))
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("end", ["executor.stop()", "pass"])
def test_a_program_that_ends_right_after_a_checkpoint_with_files_leaves_nothing(end: str, tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    program = (
        "from cellblock import SyncCodeExecutor\n"
        "executor = SyncCodeExecutor(working_dir='workspace')\n"
        "executor.start()\n"
        'executor.execute(\'open("f", "w").write("1")\')\n'
        "executor.checkpoint(files='copy')\n"
        f"{end}\n"
    )
    env = dict(os.environ, CELLBLOCK_HOME=str(tmp_path / "state"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert os.listdir(tmp_path / "state/snapshots") == []


@pytest.mark.slow
@pytest.mark.usefixtures("executor")
def test_checkpoints_are_found_by_name() -> None:
    with SyncCodeExecutor(recovery="none") as executor:
        executor.execute("found = 1")
        checkpoint = executor.checkpoint("by name")
        executor.execute("found = 2")
        assert executor.diff("by name") == executor.diff(checkpoint)
        executor.restore("by name")
        assert executor.execute("found").return_value == "1"
        checkpoint.drop()


def test_a_fork_is_told_to_make_a_new_one(executor: SyncCodeExecutor) -> None:
    if (child := os.fork()) == 0:
        try:
            executor.execute("1")
        except StateError as error:
            os._exit(0 if "before a fork" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_callback_in_the_loop_is_told_not_to_wait_for_itself(executor: SyncCodeExecutor) -> None:
    async def ask(_prompt: str) -> str:
        try:
            executor.cancel()
        except StateError as error:
            return str(error)
        return "waited"

    assert "cannot call synchronous functions" in str(executor.execute("input()", on_input=ask).return_value)


def test_files_in_parts_and_watched_directories(own: SyncCodeExecutor) -> None:
    assert own.fs.write_parts("/tmp/d/parts", iter([b"one ", b"two"])).size == 7
    assert own.fs.read_part("/tmp/d/parts", 4, 3)[1] == b"two"
    with own.fs.watch("/tmp/d") as changes:
        own.fs.write_text("/tmp/d/new", "")
        assert next(changes).path == "new"
