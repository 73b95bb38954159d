"""`input()` is answered through the API, or is an immediate clear error; nothing that reads a terminal ever hangs."""

from __future__ import annotations

import asyncio

import pytest

from cellblock import CodeExecutionChunk, CodeExecutionResult, Session
from cells import ok, value
from suite import first_quick

READERS = {
    "input": "input('? ')",
    "getpass": "import getpass; getpass.getpass()",
    "input in a function": "def f():\n    return input()\nf()",
    "input in a thread": "import concurrent.futures as c\nc.ThreadPoolExecutor(1).submit(input).result()",
    "input in an executor": "import asyncio\nawait asyncio.get_running_loop().run_in_executor(None, input)",
    "input of a child": "import multiprocessing as m\np = m.get_context('fork').Process(target=input)\np.start(); p.join()\n"
    "if p.exitcode: raise EOFError",
    "pdb": "import pdb; pdb.set_trace()",
    "breakpoint": "def f():\n    x = 1\n    breakpoint()\n    return x\nf()",
    "debug of a cell": "%debug",
    "pdb on errors": "%pdb on\n1/0",
    "readline": "import sys; line = sys.stdin.readline()\nif not line: raise EOFError",
    "iterating stdin": "import sys\nif not list(sys.stdin): raise EOFError",
    "a descriptor": "import os\nif not os.read(0, 1): raise EOFError",
    "cat": "import subprocess\nif not subprocess.run(['cat'], capture_output=True).stdout: raise EOFError",
    "a shell's read": "x = !read line || echo nothing\nif list(x) == ['nothing']: raise EOFError",
    "python's own shell": "import code; code.interact(banner='', exitmsg='')\nraise EOFError",
    "IPython's embed": "from IPython import embed\nembed(banner1='')",
    "a new python": "x = !python3 -c 'input()' 2>/dev/null || echo nothing\nif 'nothing' in list(x): raise EOFError",
    "a terminal": "open('/dev/tty').read(1)",
    "a pager": "import pydoc\npydoc.pager('text')\nraise EOFError",
    "help": "help()\nraise EOFError",
    "timeit setup": "raise EOFError(open(0, closefd=False).read())",
}


QUICK = ["input", "input in a thread", "input of a child", "pdb", "readline", "a descriptor", "a terminal"]
OTHERS = [name for name in READERS if name not in QUICK]


@pytest.mark.parametrize("names", first_quick([QUICK, OTHERS]), ids=["some", "others"])
async def test_reading_from_nobody_ends_at_once(session: Session, names: list[str]) -> None:
    """In one session: a reader that waits, or ends the kernel, is named."""
    await session.execute("kept = 1")
    for name in names:
        await session.execute(
            "import sys\n%pdb off\n"
            "try:\n    1/0\nexcept Exception as e:\n    sys.last_value, sys.last_traceback = e, e.__traceback__"
        )
        result = await session.execute(READERS[name], timeout=10)
        assert result.status in ("error", "success"), (name, result.text)
        assert not result.state_lost, name
    assert await value(session, "kept") == 1


async def test_input_without_an_answerer_says_what_to_do(session: Session) -> None:
    result = await session.execute("input('Name? ')")
    assert result.error is not None
    assert result.error.ename == "StdinNotImplementedError"
    assert "set the value in the code" in result.error.evalue


async def test_input_is_answered_by_a_function(session: Session) -> None:
    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        return f"answer {len(asked)}"

    result = await ok(session, "a = input('first? ')\nb = input()\n(a, b)", on_input=answer)
    assert result.return_value == "('answer 1', 'answer 2')"
    assert asked == ["first? ", ""]
    assert result.output == "first? answer 1\nanswer 2\n"


async def test_input_is_answered_by_a_coroutine_while_the_host_goes_on(session: Session) -> None:
    async def answer(_prompt: str) -> str:
        await asyncio.sleep(0.01)
        return "ü 😀"

    assert await value(session, "input()", on_input=answer) == "ü 😀"


async def test_a_password_is_not_shown(session: Session) -> None:
    result = await ok(session, "import getpass\np = getpass.getpass('Password: ')\nlen(p)", on_input=lambda _prompt: "secret")
    assert result.return_value == "6"
    assert "secret" not in (result.text or "")
    assert "Password: " in result.output


async def test_an_answerer_that_fails_ends_the_cell_and_is_raised_to_the_caller(session: Session) -> None:
    def answer(_prompt: str) -> str:
        raise LookupError("no answer")

    with pytest.raises(LookupError, match="no answer"):
        await session.execute("try:\n    input()\nexcept EOFError:\n    seen = 'EOFError'", on_input=answer)
    assert await value(session, "seen") == "EOFError"


async def test_an_answerer_whose_coroutine_fails_is_raised_to_the_caller(session: Session) -> None:
    async def answer(_prompt: str) -> str:
        raise LookupError("no answer")

    with pytest.raises(LookupError, match="no answer"):
        await session.execute("input()", on_input=answer)
    assert await value(session, "1") == 1


async def test_input_works_in_a_stream(session: Session) -> None:
    seen: list[str] = []
    async for event in session.stream("print('hello', input('who? '))", on_input=lambda _prompt: "world"):
        if isinstance(event, CodeExecutionChunk):
            seen.append(event.text)
    assert isinstance(event, CodeExecutionResult)
    assert event.output == "".join(seen) == "who? world\nhello world\n"


async def test_an_answer_that_comes_after_the_interrupt_reaches_no_later_question(session: Session) -> None:
    late = asyncio.Event()

    async def answer(_prompt: str) -> str:
        await late.wait()
        return "late"

    for _ in range(2):
        late.clear()
        assert (await session.execute("input()", timeout=0.05, on_input=answer)).status == "timeout"
        late.set()
        assert await value(session, "input()", on_input=lambda _prompt: "new") == "new"


async def test_the_debugger_can_be_driven_through_on_input(session: Session) -> None:
    commands = iter(["p x", "c"])
    code = "def f():\n    x = 12345\n    breakpoint()\n    return x\nf()"
    result = await session.execute(code, on_input=lambda _prompt: next(commands), timeout=20)
    assert result.status == "success", result.text
    assert result.return_value == "12345"
    assert result.output.count("12345") == 1


async def test_a_huge_answer_arrives_whole(session: Session) -> None:
    assert await value(session, "len(input())", on_input=lambda _prompt: "x" * 3_000_000) == 3_000_000


async def test_an_answer_with_strange_characters_does_not_hurt(session: Session) -> None:
    assert await value(session, "len(input())", on_input=lambda _prompt: "\ud800\0\n") > 0
