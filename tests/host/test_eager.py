"""Code that runs while it is still being written: the same as if it had come at once, or undone."""

from __future__ import annotations

import ast
import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock import CodeExecutor, Host, InvalidInputError, Session, StateError
from cellblock.host.eager import _LONGEST, Eager, ready
from cellblock.host.kernels.cell import without_fence
from clocks import Clock
from processes import eventually

TEXTS = {
    "statements": "x = 1\ny = x + 1\nprint(x, y)\nx + y",
    "a function and a class": (
        "def f(a):\n    if a:\n        return 1\n\n    # a comment\n    return 2\n\nclass A:\n    x = f(0)\n\n"
        "    def m(self):\n        return self.x\n\nA().m()\n"
    ),
    "else and except": (
        "if 0:\n    a = 1\nelif 0:\n    a = 2\nelse:\n    a = 3\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    b = 4\n"
        "else:\n    b = 5\nfinally:\n    c = 6\nfor i in ():\n    pass\nelse:\n    d = 7\nelse_ = 8\n(a, b, c, d, else_)"
    ),
    "brackets and strings": (
        "t = '''\nx = 1\nelse:\n'''\nn = [\n1,\n2,\n]\ns = (\n'a'\n'b'\n)\n"
        "m = 1 + \\\n2\n@staticmethod\ndef g(): return 1\n(t, n, s, m)"
    ),
    "await": "import asyncio\nr = await asyncio.sleep(0, 5)\nasync def h():\n    return r\nawait h()",
    "comments and empty lines": "# first\n\nz = 1  # one\n\n\n# between\nw = 2\n\nw\n# last\n",
    "output in order": "import sys\nprint('a')\nprint('b', file=sys.stderr)\nimport os\n_ = os.write(1, b'c\\n')\nprint('d');",
    "an error in the middle": "e = 1\nf = e / 0\ng = 3\n",
    "an error that the last line would be": "h = 1\ndel h\nh\n",
    "a mistake at the end": "i = 1\nj = 2\nk = = 3\n",
    "a mistake within a function": "i = 1\ndef f():\n    return = 2\n",
    "a magic at the end": "l = 1\nm = 2\n%who_ls\n",
    "a magic at the beginning": "%%capture out\nprint(1)\n",
    "a command": "o = 1\np = !echo hi\np\n",
    "help": "q = [1]\nlen(q)\nq?\n",
    "a fence": "```python\nr = 1\ns = 2\nr + s\n```",
    "indented": "    t = 1\n    u = 2\n    t + u\n",
    "semicolons": "v = 1; w = 2\nv; w\nv + w;\n",
    "windows": "x = 1\r\ny = 2\r\nx + y\r\n",
    "a future import": "from __future__ import annotations\ndef f(a: nonsense): return 1\nf(0)\n",
    "no end of line": "x = 1",
    "an exit": "aa = 1\nraise SystemExit(3)\nbb = 2\n",
}


async def eagerly(session: Session, text: str, step: int, pause: float = 0.0) -> tuple[object, ...]:
    async with session.eager() as eager:
        for start in range(0, len(text), step):
            eager.feed(text[start : start + step])
            await asyncio.sleep(pause)
        return await described(session, await eager.finish(), text)


async def described(session: Session, result: object, text: str) -> tuple[object, ...]:
    """Return what there is to see of a result, and of the session after it."""
    from cellblock.model import CodeExecutionResult

    assert isinstance(result, CodeExecutionResult)
    names = sorted(variable.name for variable in await session.variables())
    error = None if result.error is None else (result.error.ename, result.error.evalue)
    output = "" if result.error is not None else result.text
    assert session.history()[-1].code == without_fence(text)
    return result.status, output, result.return_value, error, names


@pytest.fixture
async def exact(native_host: Host, tmp_path: Path) -> AsyncIterator[Session]:
    """A session that can undo."""
    async with native_host.session(working_dir=tmp_path) as session:
        await session.checkpoint("empty")
        yield session


async def test_the_result_is_that_of_the_whole_text(exact: Session) -> None:
    """Of some texts, each in pieces of one kind: a slow test cuts all of them at any place."""
    for number, text in enumerate([*TEXTS.values()][::5]):
        expected = await described(exact, await exact.execute(text), text)
        step, pause = [(1, 0.0), (5, 0.002), (len(text), 0.0)][number % 3]
        await exact.restore("empty")
        assert await eagerly(exact, text, step, pause) == expected, text
        await exact.restore("empty")


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_the_result_is_the_same_wherever_the_stream_is_cut(exact: Session, text: str) -> None:
    expected = await described(exact, await exact.execute(text), text)
    places = range(len(text) + 1)
    for cut in random.sample(places, min(len(places), 20)):  # others in each run
        await exact.restore("empty")
        async with exact.eager() as eager:
            eager.feed(text[:cut])
            await asyncio.sleep(0.01)
            eager.feed(text[cut:])
            assert await described(exact, await eager.finish(), text) == expected, cut


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_what_is_ready_is_whole_statements_of_the_whole_text(text: str) -> None:
    whole = text.replace("\r\n", "\n")
    try:
        expected = [ast.dump(node) for node in ast.parse(whole).body]
    except SyntaxError:
        expected = []
    for cut in range(len(whole) + 1):
        found = [ast.dump(node) for node in ast.parse(whole[: ready(whole[:cut])]).body]
        if expected:
            assert found == expected[: len(found)], (cut, whole[:cut])
            assert len(found) < len(expected) or not found


LINES = [
    *("x = 1", "if x:", "    y = 2", "else:", "elif y:", "try:", "except E:", "finally:", "    pass", "def f():", "@d"),
    *("class A:", "(", ")", "'''", "[1,", "]", "# c", "", "  ", "async def g():", "    await h", "while 1:", "    break"),
    *("x \\", "e", "el", "%m", "!c", "x?", "\t", "\f"),
]


@given(st.lists(st.sampled_from(LINES), max_size=8), st.integers(0, 80))
def test_no_stream_has_statements_that_the_text_has_not(lines: list[str], cut: int) -> None:
    text = "\n".join(lines)
    count = ready(text[:cut])
    ahead = ast.parse(text[:count]).body
    try:
        whole = ast.parse(text).body
    except SyntaxError:
        return
    assert [ast.dump(node) for node in ahead] == [ast.dump(node) for node in whole[: len(ahead)]]


async def test_statements_run_before_the_text_is_complete(exact: Session, tmp_path: Path) -> None:
    async with exact.eager() as eager:
        eager.feed("open('ran', 'w').close()\nx = ")
        await eventually((tmp_path / "ran").exists)
        assert eager.ran == "open('ran', 'w').close()\n"
        eager.feed("5\nx")
        assert (await eager.finish()).return_value == "5"
    assert eager.text == "open('ran', 'w').close()\nx = 5\nx"


async def test_what_is_withdrawn_is_undone(exact: Session, tmp_path: Path) -> None:
    await exact.execute("x = [1]; import random; random.seed(1)")
    drawn = (await exact.execute("random.random()")).return_value
    await exact.undo()
    with pytest.raises(ZeroDivisionError):  # noqa: PT012  # as users write it
        async with exact.eager() as eager:
            eager.feed("x.append(2); random.random(); open('new', 'w').close()\nimport time\ntime.sleep(1000)\n1")
            await eventually((tmp_path / "new").exists)
            raise ZeroDivisionError
    assert not (tmp_path / "new").exists()
    assert await exact.get("x") == [1]
    assert (await exact.execute("random.random()")).return_value == drawn
    assert exact.next_count == 3


async def test_another_text_takes_the_place_of_the_first(exact: Session) -> None:
    async with exact.eager() as eager:
        eager.feed("x = 1\ny = 2\nz = 3\n")
        await eager.replace("x = 1\ny = 2\nw")  # what has run is its beginning
        assert eager.ran == "x = 1\ny = 2\n"
        await eager.replace("x = 5\nx")
        assert (await eager.finish()).return_value == "5"
    assert sorted(variable.name for variable in await exact.variables()) == ["x"]


async def test_a_cancelled_caller_stops_the_code(exact: Session) -> None:
    async def run() -> None:
        async with exact.eager() as eager:
            eager.feed("import time\ntime.sleep(1000)\n1")
            await eager.finish()

    task = asyncio.create_task(run())
    await eventually(lambda: exact.cells.busy)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await exact.execute("1 + 1")).ok


async def test_time_counts_when_the_text_is_complete(exact: Session, tmp_path: Path) -> None:
    with Clock() as clock:
        async with exact.eager(timeout=50) as eager:
            eager.feed("x = 1\nopen('one', 'w').close()\ny = 2\n")
            await eventually((tmp_path / "one").exists)
            await clock.advance(60)
            eager.feed("x + y")
            assert (await eager.finish()).ok
        async with exact.eager(timeout=50) as eager:
            eager.feed("import time\nopen('two', 'w').close(); time.sleep(1000)")
            finished = asyncio.create_task(eager.finish())
            await eventually((tmp_path / "two").exists)
            await clock.advance(60)
            assert (await finished).status == "timeout"


async def test_a_session_that_cannot_go_back_waits_for_the_end(native_host: Host, tmp_path: Path) -> None:
    async with native_host.session(working_dir=tmp_path, recovery="none") as session, session.eager() as eager:
        eager.feed("open('ran', 'w').close()\nx = 1\n")
        await asyncio.sleep(0.1)
        assert eager.ran == ""
        assert (await eager.finish()).ok


async def test_other_cells_wait_for_their_turn(exact: Session) -> None:
    async with exact.eager() as eager:
        eager.feed("x = 1\nx = 2\n")
        await eventually(lambda: exact.cells.busy)
        other = asyncio.create_task(exact.execute("x"))
        eager.feed("x = 3\n")
        await eager.finish()
    assert (await other).return_value == "3"


async def test_a_cell_that_waits_for_its_turn_is_withdrawn_without_a_trace(exact: Session) -> None:
    running = asyncio.create_task(exact.execute("import time\nwhile not __import__('os').path.exists('go'): time.sleep(0.01)"))
    await eventually(lambda: exact.cells.busy)
    async with exact.eager() as eager:
        eager.feed("x = 1\ny = 1\n")
        await asyncio.sleep(0.05)
    await exact.fs.write_text("go", "")
    assert (await running).ok
    assert [entry.status for entry in exact.history()] == ["success"]


async def test_input_is_answered_as_ever(exact: Session) -> None:
    async with exact.eager(on_input=lambda prompt: f"{prompt}!") as eager:
        eager.feed("x = 1\ny = input('who')\nz = 2\ny")
        assert (await eager.finish()).return_value == "'who!'"
    async with exact.eager() as eager:
        eager.feed("y = input('who')\nz = 2\ny")
        assert not (await eager.finish()).ok


async def test_connections_wait_for_the_end_of_the_text(native_host: Host, tmp_path: Path) -> None:
    from cellblock import Network, Policy

    met: list[str] = []

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    get = (
        "import os, socket; s = socket.create_connection(os.environ['HTTP_PROXY'].removeprefix('http://').split(':'), 10)\n"
        f"s.sendall(b'GET http://{address}/ HTTP/1.1\\r\\nHost: {address}\\r\\nConnection: close\\r\\n\\r\\n')\n"
        "r = s.makefile('rb').read().split()[1]\n"
    )
    policy = Policy(network=Network(allow=(address,)))
    async with server, native_host.session(working_dir=tmp_path, policy=policy) as session:
        async with session.eager() as eager:
            eager.feed(get + "r")
            await eventually(lambda: session.holding.waiting == 1)
            assert met == []
            assert (await eager.finish()).return_value == "b'200'"
        assert len(met) == 1
        async with session.eager() as eager:
            eager.feed(get + "r")
            await eventually(lambda: session.holding.waiting == 1)
        assert session.holding.waiting == 0
        assert len(met) == 1
        assert (await session.execute(get + "r")).return_value == "b'200'"


async def test_tool_calls_wait_for_the_end_of_the_text(native_host: Host, tmp_path: Path) -> None:
    called: list[str] = []
    async with CodeExecutor(host=native_host, working_dir=tmp_path, approve_shell_cmds=True) as executor:
        services = executor.services
        assert services is not None

        def allow(request: object) -> bool:
            called.append(str(request))
            return True

        services.broker.ask = allow
        async with executor.eager() as eager:
            eager.feed("x = 1\nimport subprocess\nget_ipython().system('echo hi > out')\ny = 1")
            await eventually(lambda: executor.session.holding.waiting == 1)
            assert called == []
            assert (await eager.finish()).ok
        assert len(called) == 1
        assert (tmp_path / "out").read_text() == "hi\n"


async def test_wrong_use_is_told(exact: Session) -> None:
    async with exact.eager() as eager:
        with pytest.raises(InvalidInputError, match="part must be a string"):
            eager.feed(b"x")  # type: ignore[arg-type]  # that is what is tested
        eager.feed("x = 1\0")
        with pytest.raises(InvalidInputError, match="NUL"):
            await eager.finish()
        await eager.replace("1")
        assert (await eager.finish()).ok
        for call in (eager.finish, lambda: eager.replace("2")):
            with pytest.raises(StateError, match="finished already"):
                await call()
        with pytest.raises(StateError, match="finished already"):
            eager.feed("2")
    with pytest.raises(TypeError, match="async with"), exact.eager():
        pass
    with pytest.raises(InvalidInputError, match="timeout"):
        exact.eager(timeout=0)
    assert isinstance(eager, Eager)


def test_long_and_deep_texts_take_little_time() -> None:
    deep = "x = " + "(" * 1000 + "1" + ")" * 1000 + "\ny = 1\n"
    assert ready(deep) in (0, len(deep) - len("y = 1\n"))
    assert ready("-" * 30_000 + "1\ny = 1\n") >= 0
    assert _LONGEST < 64 * 1024
