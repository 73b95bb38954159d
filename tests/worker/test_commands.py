"""Shell commands of cells that somebody decides about, run by the kernel or, where it may execute nothing, by its init."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cellblock import (
    CheckpointError,
    CodeExecutionChunk,
    CodeExecutionResult,
    CommandRequest,
    Host,
    InvalidInputError,
    Session,
)
from cells import ok, value
from processes import eventually
from suite import first_quick

linux = pytest.mark.skipif(sys.platform != "linux", reason="native sandboxes are made of Linux namespaces")


class Decider:
    """Decides as it is told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[CommandRequest] = []
        self.open = asyncio.Event()
        self.open.set()
        self.cancelled = False
        self.decision: Any = True

    async def __call__(self, request: CommandRequest) -> bool:
        self.asked.append(request)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if isinstance(self.decision, BaseException):
            raise self.decision
        return self.decision  # type: ignore[no-any-return]  # on purpose: anything

    @property
    def last(self) -> CommandRequest:
        """The last request."""
        return self.asked[-1]

    async def waiting(self, number: int = 1) -> None:
        """Wait until this many requests have come."""
        await eventually(lambda: len(self.asked) >= number)


@pytest.fixture
def decider() -> Decider:
    """Whoever decides."""
    return Decider()


@pytest.fixture(params=[pytest.param("asked", marks=pytest.mark.slow), pytest.param("forbidden", marks=linux)])
async def shell(
    request: pytest.FixtureRequest, host: Host, native_host: Host, tmp_path: Path, decider: Decider
) -> AsyncIterator[Session]:
    """A fresh session whose commands are decided about; once of each kind. It makes no copies for undo, which take time."""
    forbidden = request.param == "forbidden"
    (tmp_path / "work").mkdir()
    async with (native_host if forbidden else host).session(
        working_dir=tmp_path / "work",
        images_dir=tmp_path / "images",
        on_command=decider,
        forbid_programs=forbidden,
        recovery="none",
    ) as session:
        yield session


@pytest.fixture
async def cage(native_host: Host, tmp_path: Path, decider: Decider) -> AsyncIterator[Session]:
    """A fresh session that may execute no programs."""
    (tmp_path / "work").mkdir()
    async with native_host.session(
        working_dir=tmp_path / "work", images_dir=tmp_path / "images", on_command=decider, forbid_programs=True
    ) as session:
        yield session


WAYS: dict[str, tuple[str, CommandRequest, str, str | None]] = {
    "!cmd": ("!echo {a} $a", CommandRequest("shell", "echo 1 1"), "1 1\n", None),
    "x = !cmd": ("x = !echo {a + 1}; echo b >&2\nx", CommandRequest("shell", "echo 2; echo b >&2"), "", "['2', 'b']"),
    "!!cmd": ("!!echo é", CommandRequest("shell", "echo é"), "", "['é']"),
    "%sx": ("%sx echo {a}", CommandRequest("shell", "echo 1"), "", "['1']"),
    "%system": ("%system echo {a}", CommandRequest("shell", "echo 1"), "", "['1']"),
    "%%sx": ("%%sx\necho 1\necho 2", CommandRequest("shell", "echo 1\necho 2\n"), "", "['1', '2']"),
    "%%!": ("%%!\necho 1", CommandRequest("shell", "echo 1\n"), "", "['1']"),
    "%sc": ("%sc -l y = echo 1\ny", CommandRequest("shell", " echo 1"), "", "['1']"),
    "an alias": ("%mkdir made", CommandRequest("shell", "mkdir made"), "", None),
    "%%bash": ("%%bash\necho $0 {a}", CommandRequest("shell_magic", "echo $0 {a}\n", ("bash",)), "bash {a}\n", None),
    "%%sh": ("%%sh -s {a}\necho $1", CommandRequest("shell_magic", "echo $1\n", ("sh", "-s", "1")), "1\n", None),
    "%%script": ("%%script sed s/b/c/\nab", CommandRequest("shell_magic", "ab\n", ("sed", "s/b/c/")), "ac\n", None),
    "system": ("get_ipython().system('echo {a}')", CommandRequest("shell", "echo 1"), "1\n", None),
    "getoutput": ("get_ipython().getoutput('echo {a}', split=False)", CommandRequest("shell", "echo 1"), "", r"'1\n'"),
}


@pytest.mark.parametrize("shell", ["asked", pytest.param("forbidden", marks=linux)], indirect=True)
async def test_every_way_asks_with_what_then_runs(shell: Session, decider: Decider, tmp_path: Path) -> None:
    await ok(shell, "a = 1")
    for code, request, output, returned in WAYS.values():
        decider.asked.clear()
        result = await ok(shell, code)
        assert [(asked.tool, asked.command, asked.program) for asked in decider.asked] == [
            (request.tool, request.command, request.program)
        ]
        assert (decider.last.cwd, decider.last.environment) == (str(tmp_path / "work"), {})
        assert (result.output, result.return_value) == (output, returned)


async def test_nothing_but_true_lets_a_command_through(shell: Session, decider: Decider, tmp_path: Path) -> None:
    cases: list[tuple[str, Any]] = [
        *(("!touch made", decision) for decision in (False, None, 1, "yes", RuntimeError("no idea"))),
        ("x = !touch made", 1),
        ("%%bash\ntouch made", RuntimeError("no idea")),
    ]
    for code, decision in cases:
        decider.decision = decision
        if isinstance(decision, RuntimeError):
            with pytest.raises(RuntimeError, match="no idea"):
                await shell.execute(code)
        else:
            result = await shell.execute(code)
            assert result.error is not None
            why = decision if isinstance(decision, str) else "the command was not approved"
            assert (result.error.ename, result.error.evalue) == ("PermissionError", f"Rejected: {why}")
        assert not (tmp_path / "work" / "made").exists()
    decider.decision = True
    await ok(shell, "!touch made")
    assert (tmp_path / "work" / "made").exists()


async def test_a_script_in_the_background_is_asked_for_as_well(host: Host, decider: Decider, tmp_path: Path) -> None:
    async with host.session(working_dir=tmp_path, images_dir=tmp_path, on_command=decider) as session:
        await ok(session, "%%bash --bg\necho > made")
        await eventually(lambda: (tmp_path / "made").exists())
        decider.decision = False
        assert "Rejected" in str((await session.execute("%%bash --bg\necho > other")).text)
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
async def test_how_a_command_ended_is_told_as_always(shell: Session) -> None:
    assert await value(shell, "!exit 3\n_exit_code") == 3
    assert await value(shell, "!kill -9 $$\n_exit_code") == -9
    assert await value(shell, "!no-such-program\n_exit_code") == 127
    for magic in ("%%bash", "%%script sh"):
        result = await shell.execute(f"{magic}\nexit 4")
        assert result.error is not None
        assert result.error.ename == "CalledProcessError"
    await ok(shell, "%%bash --no-raise-error\nexit 4")
    result = await shell.execute("get_ipython().system_raise_on_error = True\nx = !exit 5")
    assert result.error is not None
    assert result.error.ename == "CalledProcessError"


async def test_a_script_fills_variables(shell: Session) -> None:
    await ok(shell, "%%bash --out o --err e\necho O; echo E >&2")
    assert await value(shell, "o, e") == ("O\n", "E\n")
    result = await ok(shell, "%%bash --out o\necho O2; echo shown >&2")
    assert (result.output, result.stderr) == ("", "shown\n")
    assert await value(shell, "o") == "O2\n"


async def test_what_code_changes_around_a_command_is_shown(shell: Session, decider: Decider, tmp_path: Path) -> None:
    (tmp_path / "work" / "sub").mkdir()
    result = await ok(
        shell, "import os; os.environ['A'] = 'é\\n='; del os.environ['LANG']; os.chdir('sub')\n!pwd; echo $A $LANG"
    )
    assert decider.last.environment == {"A": "é\n=", "LANG": None}
    assert decider.last.cwd == str(tmp_path / "work" / "sub")
    assert result.output == f"{tmp_path}/work/sub\né =\n"
    assert decider.last.to_dict()["environment"] == {"A": "é\n=", "LANG": None}


async def test_a_command_runs_where_it_was_to_run_when_somebody_was_asked(
    shell: Session, decider: Decider, tmp_path: Path
) -> None:
    """A thread can change that while the person reads."""
    (tmp_path / "work" / "elsewhere").mkdir()
    decider.open.clear()
    running = asyncio.create_task(
        shell.execute(
            "import os, threading, time\n"
            "def change():\n"
            "    while not os.path.exists('asked'): time.sleep(0.01)\n"
            "    os.environ['A'] = 'changed'; os.chdir('elsewhere'); open('changed', 'w').close()\n"
            "threading.Thread(target=change).start()\n"
            "!pwd; echo A=$A"
        )
    )
    await decider.waiting()
    (tmp_path / "work" / "asked").touch()
    await eventually((tmp_path / "work" / "elsewhere" / "changed").exists)
    decider.open.set()
    assert (await running).output == f"{tmp_path}/work\nA=\n"


async def test_a_command_has_nothing_to_read(shell: Session) -> None:
    assert await value(shell, "x = !cat; echo read\nx") == ["read"]


async def test_other_output_streams_while_somebody_decides(shell: Session, decider: Decider) -> None:
    decider.open.clear()
    code = "import threading\nthreading.Timer(0.2, print, ['meanwhile']).start()\nprint('before')\n!echo after"
    heard, before_the_decision = "", None
    async for item in shell.stream(code):
        if isinstance(item, CodeExecutionChunk):
            heard += item.text
            if "meanwhile" in heard and not decider.open.is_set():
                before_the_decision = heard
                decider.open.set()
    assert before_the_decision == "before\nmeanwhile\n"
    assert isinstance(item, CodeExecutionResult)
    assert item.output == heard == "before\nmeanwhile\nafter\n"


@pytest.mark.parametrize("code", first_quick(["!echo ran", "x = !echo ran", "%%bash\necho ran"]))
async def test_a_deadline_comes_while_somebody_decides(shell: Session, decider: Decider, code: str) -> None:
    decider.open.clear()
    result = await shell.execute(code, timeout=0.2)
    assert (result.status, result.recovery, result.output) == ("timeout", "interrupted", "")
    assert decider.cancelled
    decider.open.set()
    assert (await ok(shell, "!echo next")).output == "next\n"


async def test_an_interrupt_comes_while_somebody_decides(shell: Session, decider: Decider) -> None:
    decider.open.clear()
    running = asyncio.create_task(shell.execute("try:\n    !echo ran\nexcept KeyboardInterrupt:\n    print('caught')"))
    await decider.waiting()
    await shell.interrupt()
    assert (await running).output == "caught\n"
    assert decider.cancelled


async def test_a_reset_and_a_close_come_while_somebody_decides(shell: Session, decider: Decider) -> None:
    decider.open.clear()
    running = asyncio.create_task(shell.execute("!echo ran"))
    await decider.waiting()
    await shell.reset()
    assert (await running).status == "interrupted"
    running = asyncio.create_task(shell.execute("!echo ran"))
    await decider.waiting(2)
    await shell.close()
    assert "ran" not in (await running).output


async def test_only_the_main_thread_of_the_kernel_itself_asks(shell: Session, decider: Decider) -> None:
    code = """
import os, threading
def ask():
    try:
        get_ipython().system("echo ran")
    except PermissionError as error:
        print(error)
thread = threading.Thread(target=ask); thread.start(); thread.join()
if not (pid := os.fork()):
    ask()
    os._exit(0)
os.waitpid(pid, 0)
"""
    result = await ok(shell, code)
    assert result.output.count("only the kernel's main thread can run commands") == 2
    assert decider.asked == []


async def test_between_cells_nobody_is_asked(shell: Session, decider: Decider, tmp_path: Path) -> None:
    code = """
import asyncio, pathlib
async def later(place=pathlib.Path.cwd()):
    while not (place / "go").exists():
        await asyncio.sleep(0.005)
    try:
        get_ipython().system("echo ran")
    except ValueError as error:
        print(error)
    (place / "done").touch()
task = asyncio.create_task(later())
"""
    await ok(shell, code)
    (tmp_path / "work" / "go").touch()
    await eventually((tmp_path / "work" / "done").exists)
    assert "approval of this command is not possible" in (await ok(shell, "await task")).output
    assert decider.asked == []


async def test_what_is_no_text_or_too_large_is_refused(shell: Session, decider: Decider) -> None:
    large = "get_ipython().run_cell_magic('bash', '', '#' * (1 << 20))"
    for code in ("get_ipython().system('echo \\udcff')", large, "x = !echo {'x' * (1 << 20)}"):
        result = await shell.execute(code)
        assert result.error is not None
        assert result.error.ename == "ValueError"
        assert "approval of this command is not possible" in result.error.evalue
    assert decider.asked == []
    await ok(shell, "import os\nfor n in range(300): os.environ[f'V{n}'] = 'x'")
    result = await shell.execute("!echo")
    assert result.error is not None
    assert "300 items" in result.error.evalue


async def test_packages_are_asked_for_as_well(shell: Session, decider: Decider) -> None:
    decider.decision = False
    result = await shell.execute("%pip install 'demo>=1' --pre")
    assert result.error is not None
    assert result.error.evalue == "Rejected: the command was not approved"
    assert decider.last.command == "%pip install 'demo>=1' --pre"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"isolate": "none", "forbid_programs": True}, "needs isolate='native'"),
        ({"isolate": "native", "forbid_programs": True, "on_command": None}, "needs on_command="),
    ],
)
async def test_what_cannot_be_enforced_is_refused(
    host: Host, decider: Decider, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidInputError, match=complaint):
        host.session(**({"on_command": decider} | options))


# -- run by init ---------------------------------------------------------------------------------------------------------


@linux
async def test_a_command_is_kept_in_like_the_kernel(cage: Session) -> None:
    kept = "NoNewPrivs Seccomp CapPrm CapEff CapBnd CapAmb"
    code = (
        f"!grep -E '^({kept.replace(' ', '|')}):' /proc/self/status; readlink /proc/self/ns/net /proc/self/ns/mnt; ulimit -n"
    )
    theirs = (await ok(cage, code)).output
    ours = f"""
import os, resource
for line in open('/proc/self/status'):
    if line.split(':')[0] in {kept.split()!r}: print(line, end='')
print(os.readlink('/proc/self/ns/net'), os.readlink('/proc/self/ns/mnt'), sep='\\n')
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    assert theirs == (await ok(cage, ours)).output
    assert (await ok(cage, "!touch /usr/x || touch /etc/x")).stderr.count("Read-only file system") == 2


@pytest.mark.slow
@linux
async def test_output_streams_and_keeps_its_place(cage: Session) -> None:
    parts = [
        item.text
        async for item in cage.stream("print('a')\n!echo b; sleep 0.3; echo c\nprint('d')")
        if isinstance(item, CodeExecutionChunk)
    ]
    assert "".join(parts) == "a\nb\nc\nd\n"
    assert len(parts) >= 3


STUBBORN = {
    "that dies of it": ("sleep 1000", "interrupted"),
    "that leaves a child behind": ("setsid sleep 1000 & sleep 1000", "interrupted"),
    "that leaves a daemon behind": ("(setsid sh -c 'sleep 1000 & exit' &) ; sleep 1000", "interrupted"),
    "that ignores it": ("trap '' INT; sleep 1000 & wait; sleep 1000", "killed_children"),
}


@linux
@pytest.mark.slow
@pytest.mark.parametrize("name", STUBBORN)
@pytest.mark.parametrize("form", ["!{}", "x = !{}", "%%bash\n{}"])
async def test_an_interrupt_kills_a_command_with_all_its_children(cage: Session, name: str, form: str) -> None:
    command, recovery = STUBBORN[name]
    await ok(cage, "kept = 1\n!sleep 2000 &")
    result = await cage.execute(form.format(command), timeout=1)
    assert (result.status, result.recovery) == ("timeout", recovery)
    found = await value(
        cage, "left = !cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '\n[str(left).count(x) for x in ('p 1000', 'p 2000')]"
    )
    assert found == [0, 0 if recovery == "killed_children" else 1]
    assert await value(cage, "import glob\nkept, glob.glob('/tmp/.output*')") == (1, [])


@pytest.mark.slow
@linux
async def test_a_command_that_nobody_waits_for_any_more_ends_with_its_cell(cage: Session) -> None:
    code = """
import signal
def give_up(*_): raise TimeoutError("enough")
signal.signal(signal.SIGALRM, give_up)
signal.setitimer(signal.ITIMER_REAL, 0.5)
!sleep 1000
"""
    result = await cage.execute(code)
    assert result.error is not None
    assert result.error.evalue == "enough"
    found = await value(cage, "import glob\n[open(path).read() for path in glob.glob('/proc/[0-9]*/cmdline')]")
    assert not [line for line in found if line.startswith("sleep")]


@pytest.mark.slow
@linux
async def test_what_runs_in_the_background_goes_on_and_ends_with_the_session(cage: Session, tmp_path: Path) -> None:
    await ok(cage, "!(sleep 0.3; echo late > late; sleep 1000) &")
    await eventually(lambda: (tmp_path / "work" / "late").exists())
    result = await cage.execute("%%bash --bg\necho")
    assert result.error is not None
    assert "!command &" in result.error.evalue


@pytest.mark.slow
@linux
async def test_long_scripts_run_and_lines_that_no_program_can_be_given_are_refused(cage: Session) -> None:
    result = await ok(cage, "get_ipython().run_cell_magic('bash', '', '#' * 900_000 + '\\necho $((1 + 1))')")
    assert result.output == "2\n"
    result = await cage.execute("get_ipython().system('#\\n' * 150_000)")
    assert result.error is not None
    assert "too large" in result.error.evalue
    assert await value(cage, "x = !head -c 5000000 /dev/zero | tr '\\0' x\nlen(x[0])") == 5_000_000


@pytest.mark.slow
@linux
async def test_a_kernel_that_dies_under_a_command_leaves_nothing(cage: Session) -> None:
    result = await cage.execute("import os, threading\nthreading.Timer(0.3, os.kill, [os.getpid(), 9]).start()\n!sleep 1000")
    assert result.status == "died"
    assert (await ok(cage, "!echo next")).output == "next\n"


@linux
async def test_packages_are_installed_by_what_the_host_runs(cage: Session, decider: Decider, tmp_path: Path) -> None:
    (tmp_path / "work" / "pip.py").write_text("open('planted', 'w')")
    result = await cage.execute("%pip install no-such-package --no-index")
    assert "--no-index cannot be chosen by a session" in str(result.text)
    assert not (tmp_path / "work" / "planted").exists()
    assert decider.last.tool == "shell"


THREADS = "[thread.name for thread in __import__('threading').enumerate() if 'waitpid' not in thread.name]"
"""Those that wait for a process end with it, a moment later, and a checkpoint does not mind them."""


async def test_a_script_cell_leaves_no_thread_and_allows_checkpoints(session: Session) -> None:
    for cell in ("%%bash\necho said", "%%sh --out said\necho said >&2", "%%bash\necho said"):
        assert (await ok(session, cell)).text == "said"
        assert await value(session, THREADS) == ["MainThread"]
        checkpoint = await session.checkpoint()
        await session.restore(checkpoint)
        await checkpoint.drop()


@pytest.mark.slow
async def test_a_script_that_fails_or_is_interrupted_leaves_no_thread(session: Session) -> None:
    assert (await session.execute("%%bash\nexit 3")).status == "error"
    assert await value(session, THREADS) == ["MainThread"]
    assert (await session.execute("%%bash\nexec sleep 60", timeout=0.3)).status == "timeout"
    assert (await ok(session, "%%bash\necho said")).text == "said"
    assert await value(session, THREADS) == ["MainThread"]


async def test_a_script_in_the_background_allows_no_checkpoint_until_it_has_ended(host: Host, tmp_path: Path) -> None:
    async with host.session(working_dir=tmp_path, images_dir=tmp_path / "images") as session:
        await ok(session, "!mkfifo fifo")
        await ok(session, "%%bash --bg --out said\nread line < fifo; echo $line")
        with pytest.raises(CheckpointError, match=r"a program of a script cell .* still runs"):
            await session.checkpoint()
        first = await ok(session, "%%bash\necho first")
        assert (first.output, "still runs" in first.not_undoable) == ("first\n", True)
        await ok(session, "open('fifo', 'w').write('later\\n')")

        async def copied() -> bool:
            try:
                await session.restore(await session.checkpoint())
            except CheckpointError:
                return False
            return True

        await eventually(copied)
        assert await value(session, THREADS) == ["MainThread"]
        assert await value(session, "await said.read()") == b"later\n"
