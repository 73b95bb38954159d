"""Programs beside the kernel: what they see and print, how they end, and who may touch them."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock import (
    CheckpointError,
    Host,
    InvalidInputError,
    NotFoundError,
    Policy,
    ProcessError,
    Resources,
    Session,
    StateError,
)
from cellblock.host.programs import background_programs
from cellblock.host.programs.background_programs import Programs
from cellblock.host.programs.process import Process
from cellblock.model.programs import ExecKeywords, ExecResult, ProgramOutput, SpawnKeywords
from cellblock.wire.datagrams import encode_control
from cellblock.wire.program_messages import Ended, Started
from clocks import Clock
from processes import eventually

NAP = f"sleep {1000 + os.getpid()}"
"""What is to be ended: without a sandbox, the programs of others are seen as well."""


@pytest.fixture
async def native(native_host: Host, tmp_path: Path) -> AsyncIterator[Session]:
    """A sandboxed session on the shared host."""
    async with native_host.session(working_dir=tmp_path, recovery="none") as made:
        yield made


async def running(session: Session) -> str:
    """Return the programs that a session sees, without those that show them."""
    listed = await session.exec("ps -eo args 2>/dev/null || cat /proc/[0-9]*/cmdline")
    return listed.out


# -- what it is ----------------------------------------------------------------------------------------------------------


async def test_a_program_says_how_it_ended_and_what_it_printed(session: Session) -> None:
    """A command is taken literally, and a text goes to the shell; a signal is told apart from an exit status."""
    result = await session.exec("echo out; echo err >&2; exit 3")
    assert (result.status, result.exit_code, result.stdout, result.stderr) == ("exited", 3, b"out\n", b"err\n")
    assert not result.ok
    assert result.for_model() == "out\nerr\n[exit status 3]"
    assert ExecResult.from_dict(result.to_dict()) == result
    assert (await session.exec(["printf", "%s|", "a b", "$HOME", "*"])).out == "a b|$HOME|*|"
    assert (await session.exec('printf "%s|" $((6 * 7))')).out == "42|"
    result = await session.exec("kill -SEGV $$")
    assert (result.status, result.exit_code, result.signal) == ("signalled", 139, signal.SIGSEGV)
    assert result.reason == "SIGSEGV ended it"
    assert (await session.exec("exit 139")).status == "exited"
    result = await session.exec(["grep", "SigIgn", "/proc/self/status"])
    assert ignored(result.out) == 0  # signals have their defaults


async def test_standard_input_is_empty_or_what_is_given(session: Session) -> None:
    """Streams stay apart, or keep their order if they are merged."""

    async def parts() -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"%d\n" % number

    assert (await session.exec(["cat"])).out == ""
    assert (await session.exec(["cat"], input="text\n")).out == "text\n"
    assert (await session.exec(["cat"], input=parts())).out == "0\n1\n2\n"
    assert (await session.exec(["head", "-c", "3"], input=b"abc" * 1_000_000)).out == "abc"
    blob = bytes(range(256)) * 40
    result = await session.exec(["cat"], input=blob)
    assert result.stdout == blob
    assert ExecResult.from_dict(result.to_dict()).stdout == blob
    code = "for i in 1 2 3 4 5; do echo out$i; echo err$i >&2; done"
    apart = await session.exec(code)
    assert apart.out == "".join(f"out{i}\n" for i in range(1, 6))
    assert apart.err == "".join(f"err{i}\n" for i in range(1, 6))
    merged = await session.exec(code, merge=True)
    assert merged.out == "".join(f"out{i}\nerr{i}\n" for i in range(1, 6))
    assert merged.err == ""


async def test_directory_and_environment(session: Session, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    await session.execute("import os; os.environ['SET_BY_CODE'] = '1'; os.chdir('/')")
    result = await session.exec(
        "pwd; echo ${SET_BY_CODE-unset} $GIVEN ${LANG-unset}", cwd="sub", env={"GIVEN": "g", "LANG": None}
    )
    assert result.out == f"{tmp_path}/sub\nunset g unset\n"
    assert (await session.exec(["pwd"])).out == f"{tmp_path}\n"


async def test_what_could_not_be_executed_never_ran(session: Session, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    missing = await session.exec(["no-such-program"])
    assert (missing.status, missing.exit_code, missing.errno) == ("not_started", 127, 2)
    assert missing.reason == "no-such-program was not started: it cannot be executed: No such file or directory"
    denied = await session.exec(["./text"])
    assert (denied.status, denied.exit_code, denied.errno) == ("not_started", 126, 13)
    elsewhere = await session.exec(["true"], cwd="missing")
    assert (elsewhere.status, elsewhere.exit_code) == ("not_started", 126)
    assert "its directory cannot be entered" in elsewhere.reason
    with pytest.raises(ProcessError, match="no-such-program was not started") as caught:
        await session.spawn(["no-such-program"])
    assert caught.value.errno == 2


def ignored(line: str) -> int:
    """Return the bits of ignored signals, but for 32 and 33: they are the C library's own, which it lets nobody change."""
    return int(line.split()[1], 16) & ~(0b11 << 31)


IGNORANT = """
import asyncio, signal
from cellblock import Host

for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)

async def main():
    async with Host() as host, host.session() as session:
        print((await session.exec(["grep", "SigIgn", "/proc/self/status"])).out)

asyncio.run(main())
"""


@pytest.mark.slow
def test_signals_have_their_defaults_where_the_host_ignores_them() -> None:
    ran = subprocess.run([sys.executable, "-c", IGNORANT], capture_output=True, text=True, timeout=60)
    assert ignored(ran.stdout) == 0, ran.stderr


# -- output --------------------------------------------------------------------------------------------------------------


async def test_output_has_no_limit_and_the_result_keeps_both_ends(native: Session) -> None:
    seen = 0

    def count(piece: ProgramOutput) -> None:
        nonlocal seen
        assert piece.offset == seen
        seen += len(piece.data)

    result = await native.exec(["seq", "1000000"], max_output=1000, on_output=count)
    assert seen == 6_888_896
    assert result.truncated
    assert result.out.startswith("1\n2\n3\n")
    assert result.out.endswith("\n1000000\n")
    assert "[cellblock: 6,887,896 bytes are left out here]" in result.out


async def test_a_slow_reader_slows_the_program(native: Session) -> None:
    process = await native.spawn(["sh", "-c", "yes | head -c 8000000; touch done"])
    pieces = await process.read(0)
    await asyncio.sleep(0.1)  # if it did not wait, it would be done by now
    assert not await native.fs.exists("done")
    total = 0
    while pieces:
        total = pieces[-1].offset + len(pieces[-1].data)
        pieces = await process.read(total)
    assert total == 8_000_000
    assert (await process.wait()).ok


async def test_what_was_printed_last_is_not_lost_when_the_reader_comes_late(native: Session) -> None:
    process = await native.spawn(["sh", "-c", "head -c 1048576 /dev/zero; head -c 50000 /dev/zero"])
    assert (await process.wait(30)).ok
    await eventually(lambda: process.gone)
    total = 0
    async for piece in process:
        total += len(piece.data)
    assert total == 1_098_576


async def test_what_nobody_reads_is_dropped_if_that_is_wanted(native: Session) -> None:
    process = await native.spawn(["sh", "-c", "yes | head -c 8000000; echo end"], keep="tail")
    assert (await process.wait(30)).ok
    pieces = await process.read(0)
    assert pieces[0].offset > 6_000_000
    assert pieces[-1].data.endswith(b"end\n")


async def test_a_reader_goes_on_where_it_was(native: Session) -> None:
    process = await native.spawn("printf abc; read line; printf def", stdin=True)
    (piece,) = await process.read(0)
    assert piece.data == b"abc"
    (again,) = await process.read(1)
    assert (again.data, again.offset) == (b"bc", 1)
    await process.write("\n")
    assert b"".join(piece.data for piece in await process.read(3)) == b"def"
    assert await process.read(6) == ()
    assert (await process.wait()).ok


async def test_bytes_that_come_one_by_one_do_not_fill_the_memory(native: Session) -> None:
    process = await native.spawn("i=0; while [ $i -lt 3000 ]; do printf a; printf b >&2; i=$((i+1)); done", keep="tail")
    assert (await process.wait(60)).ok
    pieces = await process.read(0)
    assert sum(len(piece.data) for piece in pieces) == 6000


async def test_a_log_gets_all_output(session: Session, tmp_path: Path) -> None:
    result = await session.exec("echo one; echo two >&2", log="log.txt")
    assert result.ok
    assert result.out == ""
    await session.exec("echo three", log="log.txt")
    assert (tmp_path / "log.txt").read_text() == "one\ntwo\nthree\n"
    os.mkfifo(tmp_path / "fifo")
    refused = await session.exec("echo", log="fifo")
    assert refused.status == "not_started"
    assert "its log cannot be opened" in refused.reason


# -- many at once, and their ends ----------------------------------------------------------------------------------------


async def test_programs_run_beside_a_cell_and_beside_each_other(native: Session) -> None:
    cell = asyncio.create_task(native.execute("import time\nwhile not __import__('os').path.exists('go'): time.sleep(0.01)"))
    all_there = " ".join(f"[ -e {number} ] &&" for number in range(4)) + " true"  # one after the other, none would end
    waiting = (native.exec(f"touch {number}; until {all_there}; do sleep 0.01; done") for number in range(4))
    assert all(result.ok for result in await asyncio.gather(*waiting))
    await native.exec(["touch", "go"])
    assert (await cell).ok


@pytest.mark.parametrize(
    ("child", "stubborn"),
    [
        (f"sh -c 'echo begun; {NAP}'", False),
        (f"setsid sh -c 'echo begun; {NAP}'", False),
        (f"setsid sh -c 'trap \"\" TERM; echo begun; {NAP}; {NAP}'", True),
    ],
    ids=["a child", "in a session of its own", "one that ignores SIGTERM"],
)
async def test_a_time_limit_ends_the_whole_tree_and_nothing_else(session: Session, child: str, stubborn: bool) -> None:
    other = await session.spawn("sleep 2000")
    begun = asyncio.Event()
    with Clock() as clock:
        task = asyncio.create_task(session.exec(f"{child} & {NAP}", timeout=30, on_output=lambda _: begun.set()))
        await begun.wait()
        await clock.advance(31)
        if stubborn:
            await clock.advance(1)  # from SIGTERM to SIGKILL
        result = await task
    assert (result.status, result.out, result.left) == ("timeout", "begun\n", ())
    assert result.reason == "stopped after 30 s"
    assert NAP not in await running(session)
    assert other.info.running
    assert (await other.stop()).status == "cancelled"


async def test_a_group_spares_what_has_left_it(native: Session) -> None:
    begun = asyncio.Event()
    child = f"setsid sh -c 'echo begun; {NAP}'"
    with Clock() as clock:
        task = asyncio.create_task(native.exec(f"{child} & {NAP}", timeout=30, stop="group", on_output=lambda _: begun.set()))
        await begun.wait()
        await clock.advance(31)
        result = await task
    assert result.status == "timeout"
    assert result.left  # and what was signalled just now, perhaps
    assert NAP in await running(native)


async def test_what_runs_in_the_background_goes_on_and_is_listed(session: Session) -> None:
    result = await session.exec(f"{NAP} & echo $!")
    assert result.ok
    assert result.left == (int(result.out),)
    (info,) = [one for one in session.processes() if one.left]
    assert info.left == result.left
    await session.process(info.id).stop()
    assert session.process(info.id).info.left == ()
    assert NAP not in await running(session)


async def test_an_error_of_on_output_ends_the_program(native: Session) -> None:
    def fail(piece: ProgramOutput) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await native.exec(f"echo; {NAP}", on_output=fail)
    assert NAP not in await running(native)


async def test_a_cancelled_exec_leaves_nothing_wherever_it_is_cancelled(native: Session) -> None:
    async def run(turns: int) -> bool:
        task = asyncio.create_task(native.exec(f"echo; {NAP}"))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return any(one.running for one in native.processes())

    assert not any([await run(turns) for turns in range(12)])
    await eventually(lambda: not [one for one in native.processes() if one.running or one.left])
    assert NAP not in await running(native)


# -- with the session ----------------------------------------------------------------------------------------------------


async def test_programs_survive_their_kernel_and_end_with_the_session(session: Session) -> None:
    process = await session.spawn("while true; do echo tick; sleep 0.01; done", keep="tail")
    result = await session.execute("import os; os._exit(1)")
    assert result.status == "died"
    position = (await process.read(0))[-1].offset + 1
    await process.read(position + 100)
    assert process.info.running
    assert (await session.exec("echo beside")).out == "beside\n"
    assert (await session.execute("1 + 1")).ok
    assert process.info.running
    await session.reset()
    ended = process.poll()
    assert ended is not None
    assert (ended.status, ended.reason) == ("cancelled", "its session was reset")
    other = await session.spawn(NAP)
    await session.close()
    assert (await other.wait()).reason == "its session was closed"
    with pytest.raises(StateError, match="closed"):
        await session.exec("true")


async def test_an_end_is_known_also_if_its_watcher_has_left_a_signal_unread() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    process = Process(1, ("sleep", "9"), "", "tail", ours, [], None, lambda _: None, terminal=False)
    theirs.send(encode_control(Started(7)))
    await process.begun()
    process.signal(signal.SIGTERM)
    theirs.send(encode_control(Ended(0, ())))
    theirs.close()
    assert (await process.wait(5)).status == "exited"


async def test_a_program_is_no_cell(native_host: Host, tmp_path: Path) -> None:
    async with native_host.session(working_dir=tmp_path) as native:
        await native.execute("x = 1")
        await native.execute("x = 2")
        process = await native.spawn(NAP)
        await native.exec("echo done > file")
        assert [entry.code for entry in native.history()] == ["x = 1", "x = 2"]
        undone = await native.undo()
        assert [cell.code for cell in undone.cells] == ["x = 2"]
        assert undone.outside == [f"process {process.id} keeps running: /bin/sh -c '{NAP}'"]
        assert await native.get("x") == 1
        with pytest.raises(CheckpointError):
            await native.undo(2, processes="stop")
        assert process.info.running
        await native.execute("x = 3")
        assert (await native.undo(processes="stop")).outside == []
        assert not process.info.running


async def test_a_branch_has_programs_of_its_own(native: Session) -> None:
    await native.execute("x = 1")
    ours = await native.spawn(NAP)
    (branch,) = await native.fork(1)
    theirs = await branch.spawn("sleep 2000")
    assert [one.command[-1] for one in branch.processes()] == ["sleep 2000"]
    await branch.close()
    assert (await theirs.wait()).status == "cancelled"
    assert ours.info.running


@pytest.mark.slow
async def test_a_program_that_takes_too_much_memory_ends_before_the_kernel(tmp_path: Path) -> None:
    policy = Policy(resources=Resources(memory=300 << 20))
    async with Host(isolate="native", policy=policy) as host, host.session(working_dir=tmp_path) as session:
        await session.execute("x = 1")
        kernel = await session.get("x")
        result = await session.exec(["python3", "-c", "b = bytearray(400 << 20); import time; time.sleep(60)"], timeout=30)
        assert kernel == 1
        if result.status == "cancelled":  # without a control group
            assert "out of memory" in result.reason
        else:
            assert result.signal == signal.SIGKILL or "MemoryError" in result.err
        assert await session.get("x") == 1


async def test_a_full_process_table_leaves_the_kernel_alive(native_host: Host, tmp_path: Path) -> None:
    policy = Policy(resources=Resources(processes=24))
    async with native_host.session(working_dir=tmp_path, policy=policy) as session:
        await session.execute("""
            import os, time
            x = 1
            children = []
            while True:
                try:
                    pid = os.fork()
                except OSError:
                    break
                if pid == 0:
                    time.sleep(60)
                    os._exit(0)
                children.append(pid)
        """)
        for command in (["true"], "true"):
            result = await session.exec(command)
            assert (result.status, result.errno) == ("not_started", errno.EAGAIN)
            assert "allows no more processes" in result.reason
        await session.execute("[os.kill(pid, 9) or os.waitpid(pid, 0) for pid in children]")
        assert (await session.exec("true")).ok
        assert await session.get("x") == 1


@pytest.mark.slow
@pytest.mark.timeout(320)  # half a minute on a free machine
async def test_hundreds_of_branches_have_one_init(native_host: Host, tmp_path: Path) -> None:
    policy = Policy(resources=Resources(processes=4000))
    async with native_host.session(working_dir=tmp_path, policy=policy) as session:
        await session.execute("x = 1")
        branches = [(await session.fork(1))[0] for _ in range(270)]  # init has more than 1,024 descriptors
        results = await asyncio.gather(*(branch.exec("true") for branch in branches))
        assert {result.status for result in results} == {"exited"}
        assert {await branch.get("x") for branch in branches} == {1}
        await asyncio.gather(*(branch.close() for branch in branches))
        assert await session.get("x") == 1


async def test_there_is_a_limit_of_programs(native: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_programs, "MAX_PROGRAMS", 3)
    await asyncio.gather(*(native.spawn(NAP) for _ in range(3)))
    with pytest.raises(StateError, match="runs 3 programs already"):
        await native.exec("true")


# -- terminals -----------------------------------------------------------------------------------------------------------


async def test_a_terminal_has_a_size_and_takes_what_is_typed(session: Session) -> None:
    process = await session.spawn(
        ["sh", "-c", "stty size; trap 'stty size; exit 7' WINCH; echo ready; while true; do sleep 0.05; done"], pty=(24, 80)
    )
    text = ""
    async for piece in process:
        text += piece.data.decode()
        if text.endswith("ready\r\n"):
            process.resize(30, 100)
    assert text == "24 80\r\nready\r\n30 100\r\n"
    assert (await process.wait()).exit_code == 7
    process = await session.spawn(["sh", "-c", "test -t 0 && test -t 1 && read line && echo got $line; cat"], pty=(24, 80))
    await process.write("hello\n")
    await process.write(b"\x04")
    text = "".join([piece.data.decode() async for piece in process])
    assert text == "hello\r\ngot hello\r\n"
    assert (await process.wait()).ok
    process = await session.spawn(["cat"], pty=(24, 80))
    await process.write("x\n")
    while b"".join(one.data for one in await process.read(0)) != b"x\r\nx\r\n":
        await asyncio.sleep(0.01)
    await process.write(b"\x03")  # Ctrl-C
    assert (await process.wait(10)).signal == signal.SIGINT


# -- arguments -----------------------------------------------------------------------------------------------------------


BAD_ARGUMENTS: list[tuple[dict[str, object], str]] = [
    ({"command": []}, "command must be a list of strings"),
    ({"command": ""}, "command must be a list of strings"),
    ({"command": b"ls"}, "command must be a list of strings"),
    ({"command": ["ls", 1]}, "command must be a list of strings"),
    ({"command": ["l\0s"]}, "without NUL characters"),
    ({"command": ["l\ud800s"]}, "lone surrogates"),
    ({"command": "ls", "env": {"A": "\ud800"}}, r"env\['A'\] must be a string"),
    ({"command": "ls", "cwd": "\ud800"}, "lone surrogates"),
    ({"command": "ls", "timeout": 0}, "timeout must be a positive number"),
    ({"command": "ls", "cwd": "a\0"}, "cwd must be a string"),
    ({"command": "ls", "env": {"A=B": "1"}}, "with an invalid name"),
    ({"command": "ls", "env": {"A": 1}}, r"env\['A'\] must be a string"),
    ({"command": "ls", "env": ["A"]}, "env must be a dict"),
    ({"command": "ls", "input": 3}, "input must be bytes"),
    ({"command": "ls", "max_output": -1}, "max_output must be a number of bytes"),
    ({"command": "ls", "stop": "all"}, "scope must be 'program', 'group' or 'tree'"),
    ({"command": ["echo", "x" * 3_000_000]}, "longer than 2,097,152 bytes"),
]
BAD_ARGUMENTS_OF_SPAWN: list[tuple[dict[str, object], str]] = [
    ({"pty": (0, 80)}, "rows and columns"),
    ({"pty": True}, "rows and columns"),
    ({"keep": "some"}, "keep must be 'all' or 'tail'"),
    ({"stdin": b"x"}, "stdin must be True or False"),
    ({"label": 3}, "label must be a string"),
    ({"pty": (24, 80), "log": "x"}, "pass pty or log, not both"),
]


async def test_bad_arguments_name_themselves(native: Session) -> None:
    for arguments, message in BAD_ARGUMENTS:
        with pytest.raises(InvalidInputError, match=message):
            await native.exec(**arguments)  # type: ignore[arg-type]  # that is what is tested
    for arguments, message in BAD_ARGUMENTS_OF_SPAWN:
        with pytest.raises(InvalidInputError, match=message):
            await native.spawn("true", **arguments)  # type: ignore[arg-type]  # that is what is tested
    assert native.processes() == []


async def test_bad_calls_of_a_process_name_themselves(native: Session) -> None:
    process = await native.spawn(NAP, label="a nap")
    assert native.processes()[0].label == "a nap"
    for call, message in (
        (lambda: process.signal(0), "a signal is a number"),
        (lambda: process.signal(15, "all"), "scope must be"),  # type: ignore[arg-type]
        (lambda: process.resize(1, 1), "has no terminal"),
        (lambda: native.process("p99"), "has no process"),
    ):
        with pytest.raises((InvalidInputError, NotFoundError), match=message):
            call()
    with pytest.raises(InvalidInputError, match="has no standard input"):
        await process.write("x")
    with pytest.raises(TimeoutError, match="still runs"):
        await process.wait(0.01)


def test_the_arguments_for_type_checkers_are_those_that_there_are() -> None:
    import inspect

    for method, keywords in ((Programs.exec, ExecKeywords), (Programs.spawn, SpawnKeywords)):
        names = [name for name in inspect.signature(method).parameters if name not in ("self", "command")]
        assert names == [*keywords.__annotations__]
