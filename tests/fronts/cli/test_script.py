"""`cellblock run`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import cellblock
from cellblock.fronts.cli import main
from processes import eventually
from terminals import cellblock as command
from terminals import terminal

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("daemon")]


@pytest.fixture(autouse=True)
def no_session_is_left() -> Iterator[None]:
    yield
    assert cellblock.list_kernels() == []


def written(tmp_path: Path, program: str) -> str:
    """Write a script; return its path."""
    (tmp_path / "script.py").write_text(program)
    return str(tmp_path / "script.py")


def run(
    tmp_path: Path, program: str, *arguments: str, options: Sequence[str] = (), data: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    script = written(tmp_path, program)
    return subprocess.run(command("run", *options, script, *arguments), input=data, capture_output=True, check=False)


def test_arguments_standard_input_and_the_exit_status_are_passed_on(tmp_path: Path) -> None:
    program = (
        "import atexit, sys\natexit.register(print, 'bye', end='')\n"
        "print(sys.argv[1:], __name__, input(), sys.stdin.read().split(), end='', file=sys.stderr)\nsys.exit(7)"
    )
    done = run(tmp_path, program, "a", "--timeout", "-x", data="one ü\ntwo\nthree".encode())
    assert done.stderr.decode() == "['a', '--timeout', '-x'] __main__ one ü ['two', 'three']"
    assert (done.stdout, done.returncode) == (b"bye", 7)


@pytest.mark.parametrize(
    ("end", "text", "status"),
    [
        ("", "so far", 0),
        ("sys.exit(3)", r"so far\n\(exit status 3\)", 3),
        (
            "1 / 0",
            r"so far\nTraceback .*\n  File .*script.py., line 3, in <module>\n[^!]*division by zero\n\(exit status 1\)",
            1,
        ),
        ("import os; os._exit(4)", "The kernel died: .*4.*\n\nso far\n\\(exit status 4\\)", 4),
    ],
)
def test_a_model_reads_what_the_script_shows(tmp_path: Path, end: str, text: str, status: int) -> None:
    done = run(tmp_path, f"import sys\nprint('so far', flush=True)\n{end}", options=["--for-model"])
    assert (done.returncode, done.stderr) == (status, b"")
    assert re.fullmatch(text, done.stdout.decode().strip(), re.DOTALL), done.stdout.decode()
    assert "_cellblock" not in done.stdout.decode()


def test_it_takes_the_options_of_sessions(tmp_path: Path) -> None:
    program = "import os, sys; print(os.getcwd(), 'colorsys' in sys.modules)"
    done = run(tmp_path, program, options=["--workspace", str(tmp_path), "-o", "preload=colorsys"])
    assert (done.stdout.decode(), done.stderr) == (f"{tmp_path} True\n", b"")


def test_it_runs_in_a_sandbox(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    done = run(tmp_path, f"open({str(secret)!r}, 'w')")
    assert done.returncode == 1
    assert b"Error: " in done.stderr
    assert not secret.exists()
    allowed = run(tmp_path, f"open({str(secret)!r}, 'w')", options=["--no-sandbox"])
    assert (allowed.returncode, secret.exists()) == (0, True), allowed.stderr


def test_a_traceback_is_pythons_own(tmp_path: Path) -> None:
    done = run(tmp_path, "def f():\n    return 1 / 0\n\nf()\n")
    lines = done.stderr.decode().splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == f'  File "{tmp_path}/script.py", line 4, in <module>'
    assert "    return 1 / 0" in lines
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert done.returncode == 1


def test_the_end_of_standard_input_and_a_last_line_without_an_end_look_as_in_python(tmp_path: Path) -> None:
    done = run(tmp_path, "a = 1  # \x0c\nprint(input())")
    by_python = subprocess.run([sys.executable, str(tmp_path / "script.py")], input=b"", capture_output=True, check=False)
    assert (done.stderr, done.returncode) == (by_python.stderr, 1)
    assert b"EOFError" in done.stderr


@pytest.mark.parametrize(
    ("program", "status", "error"),
    [
        ("raise SystemExit", 0, ""),
        ("raise SystemExit('a message')", 1, "a message\n"),
        ("raise SystemExit(256)", 0, ""),
        ("raise SystemExit(-1)", 255, ""),
        ("x = (", 1, None),
        (
            "print('begun', end='', flush=True); import os; os._exit(3)",
            3,
            "the script has died: its process exited with status 3 (os._exit(), or exit() in C code)\n",
        ),
        ("import os; os.kill(os.getpid(), 10)", 128 + 10, "the script has died: SIGUSR1\n"),
    ],
)
def test_exit_statuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], program: str, status: int, error: str | None
) -> None:
    assert main(["run", written(tmp_path, program)]) == status
    assert error is None or capsys.readouterr().err == error


def test_a_script_that_reads_nothing_does_not_wait_for_input(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("run", written(tmp_path, "print('done')")), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.read() == b"done\n"  # while its standard input is open
    assert process.wait(30) == 0
    process.communicate()


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    # Not print(): the interrupt could come while it still runs, and its frames would be in the traceback.
    script = written(tmp_path, "import os\nos.write(1, b'begun\\n')\nwhile True: pass")
    with terminal(*command("run", script)) as screen:
        screen.wait_for("begun")
        screen.type("\x03")
        assert screen.end() == 130
    assert re.search(rf'File "{script}", line [23], in <module>', screen.text)
    assert "KeyboardInterrupt" in screen.text
    assert "_cellblock_run" not in screen.text
    assert "/worker/" not in screen.text  # how it is run is of no interest to who reads the traceback


def test_a_script_that_takes_too_long_ends_with_its_own_traceback(tmp_path: Path) -> None:
    done = run(tmp_path, "while True: pass", options=["--timeout", "0.2"])
    assert done.returncode == 124
    assert f'File "{tmp_path}/script.py", line 1, in <module>'.encode() in done.stderr
    assert b"_cellblock_run" not in done.stderr
    assert done.stderr.endswith(b"stopped at its timeout (--timeout SECONDS allows more)\n")


async def test_ending_the_command_ends_the_script(tmp_path: Path) -> None:
    process = subprocess.Popen(command("run", written(tmp_path, "while True: pass")))
    await eventually(lambda: any(kernel.status == "running" for kernel in cellblock.list_kernels()))
    process.terminate()
    assert process.wait(30) == 143


def test_what_is_no_script_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(command("run", str(tmp_path / "missing.py")), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        f"cellblock: {tmp_path}/missing.py cannot be read: No such file or directory\n",
    )
    done = subprocess.run(command("run", "--nosuch", "script.py"), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "cellblock: no such option: --nosuch (see 'cellblock run --help'; a script of this name is ./--nosuch)\n",
    )
