"""`cellblock exec`, as a program uses it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cellblock
from cellblock.errors import NotRunError
from cellblock.fronts import where
from cellblock.fronts.cli import main
from cellblock.operations.base import Request
from processes import eventually
from terminals import cellblock as command

pytestmark = pytest.mark.usefixtures("daemon")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    status = main(["exec", *arguments])
    return status, json.loads(capsys.readouterr().out)


def test_code_runs_in_a_session_that_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--name", "new", "x = 20")[0] == 0
    status, result = run(capsys, "--name", "new", "print('hello'); x * 2")
    assert (status, result["status"], result["output"], result["return_value"]) == (0, "success", "hello\n", "40")
    assert cellblock.status("new").workspace == os.getcwd()


class Ending:
    """A connection to a daemon that ends before it takes a request."""

    usable = False

    def call(self, request: Request[Any], body: bytes = b"") -> Any:
        raise NotRunError("the daemon was shutting down, and the request was not sent")

    def close(self) -> None:
        """There is nothing to close."""


def test_a_request_that_an_ending_daemon_did_not_take_goes_to_the_next_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = [Ending(), Ending()]
    monkeypatch.setattr(where, "open_if_running", lambda: ending.pop() if ending else where.open_connection())
    assert run(capsys, "--name", "taken", "x = 41; x")[1]["return_value"] == "41"
    ending.append(Ending())
    assert main(["undo", "taken"]) == 0
    assert not ending
    ending += [Ending()] * 10
    assert main(["undo", "taken"]) == 4
    assert "the daemon was shutting down" in capsys.readouterr().err
    assert len(ending) == 5


def test_the_result_is_sorted_and_indented(capsys: pytest.CaptureFixture[str]) -> None:
    main(["exec", "--name", "fields", "1 + 1"])
    text = capsys.readouterr().out
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"


def test_bash_a_file_and_standard_input(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(capsys, "--name", "ways", "--bash", "echo one; echo two")[1]["output"] == "one\ntwo\n"
    file = tmp_path / "cell.py"
    file.write_text("'from a file: ü'")
    assert run(capsys, "--name", "ways", "--file", str(file))[1]["return_value"] == "'from a file: ü'"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"'from a pipe'")))
    assert run(capsys, "--name", "ways", "-")[1]["return_value"] == "'from a pipe'"


@pytest.mark.slow
def test_what_code_prints_is_printed_in_a_pipe_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """README's first command says 7, wherever it is run. KernelBox's form prints JSON in a pipe."""
    assert main(["exec", "words", "prices = [3, 4]; sum(prices)"]) == 0
    assert capsys.readouterr().out == "7\n"
    assert main(["exec", "words", "import sys; print('out'); print('err', file=sys.stderr); 1 / 0"]) == 1
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[0]) == ("out\n", "err")
    assert "ZeroDivisionError: division by zero" in err
    assert run(capsys, "--name", "words", "sum(prices)")[1]["return_value"] == "7"
    assert run(capsys, "words", "sum(prices)", "--json")[1]["return_value"] == "7"
    (tmp_path / "cell.py").write_text("\ufeffprint('from a file')")
    assert main(["exec", "words", "--file", str(tmp_path / "cell.py")]) == 0
    assert capsys.readouterr().out == "from a file\n"


@pytest.mark.slow
def test_code_alone_runs_in_a_session_that_is_called_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exec", "x = 20"]) == 0
    assert main(["exec", "x + 1"]) == 0
    assert capsys.readouterr().out == "21\n"
    assert "default" in [record.name for record in cellblock.list_kernels()]
    assert main(["exec", "x"]) == 0
    assert main(["exec", "prices"]) == 1
    assert capsys.readouterr().err.endswith("to run code in the session of this name: cellblock exec prices CODE\n")


@pytest.mark.slow
def test_a_model_reads_one_short_text_and_the_rest_in_the_session(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exec", "model", "--for-model", "print('so far'); 1 / 0"]) == 1
    assert capsys.readouterr() == ("Error: ZeroDivisionError: division by zero\n\nso far\nCell In[1], line 1\n"
                                   "----> 1 print('so far'); 1 / 0\n", "")  # fmt: skip
    assert main(["exec", "model", "--for-model", "print('line\\n' * 1500)"]) == 0
    text = capsys.readouterr().out
    assert len(text) < 5100
    path = text.partition("characters left out: read ")[2].partition(" …")[0]
    assert run(capsys, "--name", "model", f"len(open({path!r}).read())")[1]["return_value"] == "7499"
    assert main(["exec", "model", "import shutil; shutil.rmtree('outputs'); open('outputs', 'w').close()"]) == 0
    assert main(["exec", "model", "--for-model", "print('line\\n' * 1500)"]) == 0
    text = capsys.readouterr().out
    assert "characters left out" in text  # what fits is shown, although there can be no file
    assert "read outputs" not in text


@pytest.mark.slow
def test_options_are_for_a_session_that_is_made(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    made = ["exec", "made", "--workspace", str(tmp_path), "-o", "preload=colorsys", "-o", "images_dir=pics"]
    assert main([*made, "import os, sys; print(os.getcwd(), 'colorsys' in sys.modules)"]) == 0
    assert capsys.readouterr().out == f"{tmp_path} True\n"
    assert main(["exec", "made", "--allow-host", "example.org", "1"]) == 2
    assert "exists with other options: hosts is the default, not ['example.org']" in capsys.readouterr().err
    assert main([*made, "1 + 1"]) == 0
    assert capsys.readouterr().out == "2\n"
    assert run(capsys, "--name", "made", "1")[1]["return_value"] == "1"
    assert main(["exec", "--id", "made", "-o", "idle_timeout=5", "1"]) == 2
    assert "idle_timeout: options apply to new sessions only" in capsys.readouterr().err


@pytest.mark.slow
def test_an_option_that_is_repeated_is_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    modules = ["-o", "preload=colorsys", "-o", "preload=chunk_of_nothing", "-o", "preload=imghdr"]
    assert main(["exec", "modules", *modules, "1"]) != 0
    assert "chunk_of_nothing" in capsys.readouterr().err


def test_the_exit_status_tells_how_it_ended(capsys: pytest.CaptureFixture[str]) -> None:
    status, result = run(capsys, "--name", "ends", "1 / 0")
    assert (status, result["error"]["ename"]) == (1, "ZeroDivisionError")
    status, result = run(capsys, "--name", "ends", "--timeout", "0.2", "while True: pass")
    assert (status, result["status"]) == (124, "timeout")
    status, result = run(capsys, "--name", "ends", "import os; os._exit(3)")
    assert (status, result["status"]) == (1, "died")
    status, result = run(capsys, "--name", "ends", "exit(3)")
    assert (status, result["error"]["evalue"]) == (1, "3")
    assert run(capsys, "--name", "ends", "exit(0)")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--name", "a", "--id", "b", "1"], "name one session"),
        (["--name", "", "1"], "name one session"),
        (["--name", "a"], "give the code as CODE, as - to read it from standard input, or with --file FILE"),
        (["--name", "a", "--file", "x.py", "1"], "a session and its code are expected"),
        ([], "give the code as CODE, as - to read it from standard input, or with --file FILE"),
        (["--name", "a", "--file", "missing.py"], "missing.py cannot be read: No such file or directory"),
        (["--name", "a", "--timeout", "0", "1"], "--timeout must be a positive number of seconds, not '0'"),
        (["--name", "a", "--timeout", "-1", "1"], "--timeout must be a positive number of seconds, not '-1'"),
        (["--name", "a", "--timeout", "nan", "1"], "--timeout must be a positive number of seconds, not 'nan'"),
        (["--name", "a", "--timeout", "inf", "1"], "--timeout must be a positive number of seconds, not 'inf'"),
        (["--name", "a", "--timeout", "soon", "1"], "--timeout must be a positive number of seconds, not 'soon'"),
        (["--name", "a\x1b", "1"], "a session's name has 1 to 128 letters"),
        (["--name", "a", os.fsdecode(b"'\xff'")], "CODE is not valid UTF-8 (byte 1): save it as UTF-8"),
    ],
)
def test_wrong_usage_is_named(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert main(["exec", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"cellblock: {said}")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "standard input is empty: there is no code to run"),
        (b" \n", "standard input is empty: there is no code to run"),
        (b"\x7fELF\0\1", "standard input is a binary file, not code"),
        (b"x = '\xff'", "standard input is not valid UTF-8 (byte 5)"),
    ],
)
def test_input_that_is_not_code_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, data: bytes, said: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert main(["exec", "--name", "a", "-"]) == 2
    assert capsys.readouterr().err.startswith(f"cellblock: {said}")


def test_an_id_that_is_unknown_says_which_sessions_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    cellblock.get_or_create("numbered")
    assert main(["exec", "--id", "numberd", "1"]) == 1
    assert capsys.readouterr().err == "cellblock: there is no session 'numberd'; did you mean 'numbered'?\n"
    assert run(capsys, "--id", cellblock.status("numbered").kernel_id, "7")[1]["return_value"] == "7"


@pytest.mark.slow
def test_settings_are_in_force(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELBOX_EXECUTION_TIMEOUT", "0.2")
    monkeypatch.setenv("CELLBLOCK_STARTUP_CODE", "begun = 1")
    assert run(capsys, "--name", "set", "begun")[1]["return_value"] == "1"
    assert run(capsys, "--name", "set", "while True: pass")[0] == 124


@pytest.mark.slow
def test_a_setting_that_does_not_exist_is_a_warning_in_one_line() -> None:
    done = subprocess.run(["env", "CELLBLOCK_MAX_RETRYS=3", *command("config")], capture_output=True, text=True, check=True)
    assert (
        done.stderr == "cellblock: warning: CELLBLOCK_MAX_RETRYS is not a setting of cellblock; did you mean 'max_retries'?\n"
    )


def test_a_large_output_arrives_whole_and_control_characters_are_escaped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLBLOCK_OUTPUT_CHAR_LIMIT", "0")
    _, result = run(capsys, "--name", "large", "print('x' * 300_000); print('\\x1b]0;title\\x07\\x9b1m')")
    assert result["output"] == "x" * 300_000 + "\n\x1b]0;title\x07\x9b1m\n"
    main(["exec", "--name", "large", "print('\\x1b]0;title\\x07\\x9b1m')"])
    assert capsys.readouterr().out.replace("\n", "").isprintable()


@pytest.mark.slow
def test_a_warm_daemon_is_asked_without_what_takes_long_to_load() -> None:
    program = (
        "import sys; from cellblock.fronts.cli import main; main(['exec', '--name', 'quick', 'x = 1'])\n"
        "heavy = {'asyncio', 'click', 'mcp', 'pydantic', 'rich', 'ssl', 'subprocess', 'typer'}\n"
        "print('loaded:', sorted(heavy & set(sys.modules)))"
    )
    cellblock.get_or_create("quick")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []", done.stderr


async def test_interrupting_the_command_stops_the_cell_and_leaves_the_session() -> None:
    cellblock.execute(cellblock.get_or_create("stopped"), "kept = 5")
    process = subprocess.Popen(
        command("exec", "--name", "stopped", "import time; time.sleep(100)"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    await eventually(lambda: cellblock.status("stopped").status == "running")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, json.loads(out)["status"], err) == (130, "interrupted", b"")
    assert cellblock.execute("stopped", "kept").return_value == "5"


@pytest.mark.slow
async def test_what_waits_for_its_turn_can_be_interrupted() -> None:
    cellblock.get_or_create("busy")
    first = subprocess.Popen(command("exec", "--name", "busy", "import time; time.sleep(100)"), stdout=subprocess.DEVNULL)
    await eventually(lambda: cellblock.status("busy").status == "running")
    second = subprocess.Popen(command("exec", "--name", "busy", "ran = 1"), stderr=subprocess.PIPE)
    await eventually(lambda: len(executions("busy")) == 2)
    second.send_signal(signal.SIGINT)
    _, err = second.communicate(timeout=30)
    assert (second.returncode, err) == (130, b"cellblock: interrupted\n")
    first.send_signal(signal.SIGINT)
    assert first.wait(30) == 130
    assert cellblock.execute("busy", "'ran' in globals()").return_value == "False"


def executions(session: str) -> list[Any]:
    from cellblock.fronts.functions.connection import connection
    from cellblock.operations.executions import Executions

    found: list[Any] = connection().call(Executions(session))
    return found


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as output:
        done = subprocess.run(
            command("exec", "--name", "pipe", "print('x' * 100_000)"), stdout=output, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_directory_that_is_gone_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    directory, before = tmp_path / "gone", Path.cwd()
    directory.mkdir()
    os.chdir(directory)
    try:
        directory.rmdir()
        assert main(["exec", "--name", "nowhere", "1"]) == 2
    finally:
        os.chdir(before)
    assert capsys.readouterr().err.startswith("cellblock: the current directory no longer exists")
