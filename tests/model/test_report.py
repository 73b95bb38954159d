"""The text of a result for a language model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, strategies

from cellblock import CodeExecutionError, CodeExecutionResult, CodeExecutor, Host, InvalidInputError, Limits, Session
from cellblock.errors import NO_NETWORK
from cellblock.model import ErrorInfo, OutputItem
from cellblock.model.report import clean
from cells import ok


@pytest.fixture(scope="module")
async def native_session(native_host: Host, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Session]:
    """A session in a sandbox, which has no network."""
    async with native_host.session(working_dir=tmp_path_factory.mktemp("work"), recovery="none") as session:
        yield session


@pytest.fixture(scope="module")
async def session(zygote_host: Host, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Session]:
    """One session for all tests: none needs what another one leaves."""
    async with zygote_host.session(images_dir=tmp_path_factory.mktemp("images"), recovery="none") as session:
        yield session


def _shown(text: str) -> CodeExecutionResult:
    return CodeExecutionResult(text=text, output=text, outputs=[OutputItem("stream", text, "stdout")])


async def test_a_result_that_simply_succeeded_is_what_it_showed(session: Session) -> None:
    assert (await ok(session, "print('a')\n'b'")).for_model() == "a\n'b'"
    assert (await ok(session, "x = 1")).for_model() == "(no output)"


async def test_an_error_comes_first_and_its_traceback_is_the_users_own_frames(session: Session) -> None:
    result = await session.execute("import json\nprint('so far')\ndef f(text):\n    json.loads(text)\nf('{')")
    first, _, shown, *frames = result.for_model().split("\n")
    assert first == "Error: JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
    assert shown == "so far"
    assert [line for line in frames if line.startswith("-")][:2] == ["----> 5 f('{')", "----> 4     json.loads(text)"]
    assert "… 2 library frames left out …" in frames
    assert "File json/decoder.py:" in result.for_model()
    assert not any("JSONDecodeError" in line for line in frames[-1:])  # the first line has said it


async def test_of_what_led_to_an_error_the_message_is_told(session: Session) -> None:
    code = "def f():\n    {}['key']\ntry:\n    f()\nexcept KeyError as error:\n    raise ValueError('no') from error"
    text = (await session.execute(code)).for_model()
    assert text.startswith("Error: ValueError: no\n\nKeyError: 'key'\nThe above exception was the direct cause")
    assert "----> 6" not in text.split("The above")[0]


async def test_a_chain_of_errors_tells_its_root_cause(session: Session) -> None:
    links = "\n".join(
        f"def f{n}():\n    try:\n        f{n - 1}()\n    except Exception as e:\n        raise ValueError('link {n}') from e"
        for n in range(1, 12)
    )
    result = await session.execute(f"def f0():\n    raise ConnectionError('port 5432 closed')\n{links}\nf11()")
    text = result.for_model()
    assert text.startswith(
        "Error: ValueError: link 11\n\nConnectionError: port 5432 closed\nThe above exception was the direct"
    )
    assert "ValueError: link 10\n" in text
    assert "lines left out" in text


async def test_the_lines_of_a_message_stay(session: Session) -> None:
    result = await session.execute(r"raise ValueError('syntax error at\nLINE 1: SELEC 1\n        ^')")
    assert result.for_model().startswith("Error: ValueError: syntax error at\nLINE 1: SELEC 1\n        ^\n\nCell In")


@pytest.mark.slow
async def test_a_server_that_is_not_registered_is_what_an_import_of_its_tools_fails_by(session: Session) -> None:
    for code, missing in (("import mcptools", "mcptools"), ("from mcptools.github.search import run", "mcptools")):
        first = (await session.execute(code)).for_model().split("\n")[0]
        assert first == (
            f"Error: ModuleNotFoundError: there is no {missing}: register the MCP server first, or check its name"
        )


async def test_syntax_errors_show_the_place(session: Session) -> None:
    text = (await session.execute("x = (1\ny = 2")).for_model()
    assert text.startswith("Error: ")
    assert "x = (1" in text
    assert "^" in text


async def test_a_timeout_says_so_everywhere_and_how_it_ended(session: Session) -> None:
    result = await session.execute("import time\nprint('begun')\ntime.sleep(60)", timeout=0.3)
    told = "The cell was stopped at its deadline (by an interrupt). Variables are kept."
    assert result.for_model().startswith(f"Timeout: {told}\n")
    assert "begun" in result.for_model()
    assert result.text is not None
    assert "KeyboardInterrupt" not in result.text
    assert result.text.endswith(f"TimeoutError: {told}")


@pytest.mark.slow
async def test_code_that_swallows_its_interrupt_is_told_to_have_timed_out(session: Session) -> None:
    code = "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('caught')"
    result = await session.execute(code, timeout=0.3)
    assert result.text is not None
    assert result.text.splitlines()[0] == "caught"
    assert result.text.splitlines()[-1].startswith("TimeoutError: ")


async def test_a_death_is_told_with_its_cause(session: Session) -> None:
    text = (await session.execute("print('last words', flush=True)\nimport os\nos._exit(3)")).for_model()
    assert text.startswith("The kernel died: its process exited with status 3")
    assert text.endswith("last words")


async def test_a_memory_error_names_the_limit(native_session: Session) -> None:
    result = await native_session.execute("bytearray(1 << 45)")
    limit = "MemoryError: out of memory: the session may use"
    assert result.for_model().startswith(f"Error: {limit}")
    assert result.text is not None
    assert limit in result.text.splitlines()[-1]


@pytest.mark.parametrize(
    "cases",
    [
        [
            "import urllib.request\nurllib.request.urlopen('http://example.org')",
            "import socket\nsocket.create_connection(('192.0.2.1', 80))",
            "import asyncio\nawait asyncio.open_connection('example.org', 80)",
        ],
        pytest.param(["import requests\nrequests.get('https://example.org')"], marks=pytest.mark.slow),
    ],
    ids=["standard library", "requests"],
)
async def test_a_failed_connection_says_that_there_is_no_network(native_session: Session, cases: list[str]) -> None:
    for code in cases:
        result = await native_session.execute(code)
        assert result.error is not None
        assert NO_NETWORK in result.error.evalue
        assert result.for_model().startswith(f"Error: {result.error.ename}: {NO_NETWORK}\n")


@pytest.mark.parametrize(
    "cases",
    [
        [
            "import urllib.request\nurllib.request.urlopen('http://example.org:8080')",
            "import urllib.request\nurllib.request.urlopen('https://example.org:8080')",
        ],
        pytest.param(
            [
                "import requests\nrequests.get('https://example.org:8080')",
                "import httpx\nhttpx.get('https://example.org:8080')",
            ],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["standard library", "others"],
)
async def test_a_refused_host_is_told_first_with_the_rule_that_allows_it(
    native_host: Host, tmp_path: Path, cases: list[str]
) -> None:
    async with CodeExecutor(host=native_host, working_dir=tmp_path, allow_hosts=["example.com"]) as executor:
        for code in cases:
            with pytest.raises(CodeExecutionError) as caught:
                await executor.execute(code)
            result = caught.value.result
            assert result is not None
            assert result.error is not None
            told = "example.org:8080 was refused. To allow it: cellblock network NAME --allow example.org:8080,"
            assert result.for_model().startswith(f"Error: {result.error.ename}: {told} ")
            assert result.for_model().count("example.org:8080 was refused") == 1
            assert "names this host; to allow it" in result.error.evalue
            assert "names this host; to allow it" not in result.for_model().partition("[cellblock]")[0]
            with pytest.raises(CodeExecutionError) as caught:
                await executor.execute(f"try:\n    exec({code!r})\nexcept Exception: 1 / 0")
            result = caught.value.result
            assert result is not None
            assert result.for_model().startswith("Error: ZeroDivisionError: division by zero\n")


async def test_an_error_that_the_cell_survived_is_told_once(session: Session, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("1 / 0")
    text = (await session.execute(f"%run {tmp_path / 'script.py'}\nprint('after')")).for_model()
    assert text.startswith("Error: ZeroDivisionError: division by zero\n\nafter\nFile ")
    assert text.count("division by zero") == 1


@pytest.mark.slow
async def test_code_with_a_network_is_not_told_otherwise(session: Session) -> None:
    result = await session.execute("import socket\nsocket.getaddrinfo('name.invalid', 80)")
    assert result.error is not None
    assert NO_NETWORK not in result.error.evalue


async def test_images_are_named(session: Session) -> None:
    png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    result = await ok(session, f"from IPython.display import Image\nimport base64\nImage(base64.b64decode('{png}'))")
    assert result.for_model().endswith(f"\nImages: {result.images[0]}")


def test_long_output_loses_its_middle_and_says_how_much() -> None:
    for limit in (200, 1000, 20_000):
        result = _shown("".join(f"line {number}\n" for number in range(20_000)))
        text = result.for_model(limit)
        assert len(text) <= limit
        assert text.startswith("line 0\n")
        assert "line 19999" in text[-20:]
        assert "characters left out: print less …" in text


def test_everything_long_at_once_still_fits() -> None:
    error = ErrorInfo("E" * 5000, "v" * 5000, ["-" * 75, *[f"Cell In[{n}], line 1\n" + "x" * 5000 for n in range(99)]])
    paths = [Path("/images") / ("p" * 200 + f"{n}.png") for n in range(100)]
    item = OutputItem("stream", "o" * 50_000, "stdout")
    for limit in (200, 500, 5000):
        result = CodeExecutionResult(text=item.text, outputs=[item], error=error, status="error", images=paths, spilled=paths)
        assert len(result.for_model(limit)) <= limit


async def test_what_is_left_out_is_named_by_its_file(host: Host, tmp_path: Path) -> None:
    async with host.session(limits=Limits(text=2000), spill_dir=tmp_path) as session:
        result = await ok(session, "for number in range(10_000): print(number)")
    text = result.for_model(1000)
    assert f"left out: read {result.spilled[0]} …" in text
    assert len(text) <= 1000


def test_short_texts_are_cut_and_say_so() -> None:
    for limit in (1, 2, 50, 199):
        result = _shown("word " * 1000)
        text = result.for_model(limit)
        assert len(text) <= limit
        assert "…" in text
        assert _shown("a").for_model(limit) == "a"


def test_a_model_reads_no_control_characters() -> None:
    cases: list[tuple[str, str]] = [
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07plain", "red plain"),
        ("\x1b(B\x1b[m bold \x1b7\x1b8 \x1b=", " bold  "),  # of `tput sgr0`, and a saved position
        ("\x1bP1$r0m\x1b\\a\x1b_secret\x1b\\b\x90x\x9cc", "abc"),
        ("\x9b31mred\x9b0m \x9d0;title\x07b", "red b"),
        ("nul\x00 bell\x07 \x7f\x85\x0b", "nul bell "),
        ("abc\x08\x08\x08xyz\x08!\n\x08a", "xy!\na"),
        ("half \ud83d of a pair", "half  of a pair"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("\x1b\n", "\n"),
        ("é ü 日本 \u200d", "é ü 日本 \u200d"),
    ]
    for text, shown in cases:
        assert clean(text) == shown
        assert _shown(f"a{text}b").for_model() == f"a{shown}b"


@given(strategies.text(alphabet="\x1b\x9b\x9d\x90\x9c\x07\x08[]PX(B0m;\\a\n", max_size=400))
def test_whatever_is_printed_no_control_character_is_left(text: str) -> None:
    assert not set(clean(text)) & {chr(number) for number in (*range(9), *range(11, 32), *range(127, 160))}


def test_hostile_text_takes_as_long_as_it_is() -> None:
    """It would take minutes in quadratic time, and the test its limit."""
    for text in ("\x1bP" * 250_000, "\x1b[" * 250_000, "a" * 250_000 + "\x08" * 250_000, "\x9d" * 500_000):
        clean(text)


async def test_a_crash_shows_where_the_code_was_and_nothing_of_ours(session: Session) -> None:
    await ok(session, "x = 1")
    result = await session.execute("def f():\n    import ctypes\n    ctypes.string_at(0)\nf()")
    first, empty, *lines = result.for_model().split("\n")
    assert first.startswith("The kernel died: SIGSEGV")
    assert empty == ""
    assert lines[0] == "Fatal Python error: Segmentation fault"
    assert lines[1].startswith("  ctypes/__init__.py, line ")
    number = int(lines[2].split()[4].rstrip(","))
    assert lines[2:] == [f"  line 3 of cell {number}, in f", f"  line 4 of cell {number}, in <module>"]


def test_a_crash_of_python_314_shows_no_addresses() -> None:
    told = (
        "so far\nFatal Python error: Aborted\n\nCurrent thread 0x00007f [python] (most recent call first):\n"
        '  File "<ipython-input-2-ab>", line 3 in f\n\nCurrent thread\'s C stack trace (most recent call first):\n'
        '  Binary file "/v/bin/python", at _Py_DumpStack+0x4a [0x499c1d]\n  <truncated rest of calls>\n\n'
        "Extension modules: zmq (total: 1)\n"
    )
    result = CodeExecutionResult(text=told, status="died", error=ErrorInfo("KernelDied", "The kernel died: SIGABRT."))
    assert result.for_model() == ("The kernel died: SIGABRT.\n\nso far\nFatal Python error: Aborted\n  line 3 of cell 2, in f")


@pytest.mark.slow
async def test_what_is_said_once_is_not_said_again(session: Session) -> None:
    assert (await session.execute("raise SystemExit(3)")).for_model() == "Error: SystemExit: 3"
    result = await session.execute("x = = 1")
    where = f"Cell In[{result.execution_count}], line 1"
    assert result.for_model() == f"Error: SyntaxError: invalid syntax\n\n  {where}\n    x = = 1\n        ^"
    text = (await session.execute("import os\nos.abort()")).for_model()
    assert text.count("The kernel died") == 1
    await ok(session, "1")  # in a new kernel


async def test_a_command_that_fails_says_its_exit_status(session: Session) -> None:
    assert (await ok(session, "!exit 3")).for_model() == "[exit status 3]"
    assert (await ok(session, "!kill -9 $$")).for_model() == "[ended by signal 9]"
    assert (await ok(session, "_exit_code")).return_value == "-9"
    assert (await ok(session, "!true")).for_model() == "(no output)"
    assert (await ok(session, "x = !exit 4")).for_model() == "(no output)"


def test_lengths_that_are_none_are_refused() -> None:
    cases: list[object] = [0, 500_001, -1, True, 1.5, "x"]
    for limit in cases:
        with pytest.raises(InvalidInputError, match="max_chars"):
            _shown("x").for_model(limit)  # type: ignore[arg-type]
