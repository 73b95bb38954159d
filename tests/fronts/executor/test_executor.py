"""`CodeExecutor`: start, stop, execute, stream, reset, cancel, and what it says when it is misused."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import cellblock.service.session.running as running
from cellblock import (
    ApprovalRequest,
    CodeExecutionChunk,
    CodeExecutionError,
    CodeExecutionResult,
    CodeExecutor,
    ExecutionTimeoutError,
    Host,
    InvalidInputError,
    NotFoundError,
    OutputItem,
    Rule,
    Rules,
    StateError,
    ToolRunner,
    ToolRunnerError,
)
from cellblock.tools.calling import pool
from processes import below, eventually
from web_servers import IN_A_SESSION

# -- starting and stopping ---------------------------------------------------------------------------------------------


async def test_a_number_of_branches_is_at_least_one(host: Host) -> None:
    async with CodeExecutor(host=host, sandbox=False) as executor:
        for n in (0, -1, True, "2"):
            with pytest.raises(InvalidInputError, match="n must be a number of branches"):
                await executor.fork(n)  # type: ignore[arg-type]


async def test_a_second_start_begins_without_the_variables_of_the_first(host: Host) -> None:
    executor = CodeExecutor(host=host, sandbox=False)
    async with executor:
        await executor.execute("x = 1")
    async with executor:
        with pytest.raises(CodeExecutionError, match="NameError"):
            await executor.execute("x")


async def test_stopping_twice_or_before_the_start_is_fine(host: Host) -> None:
    executor = CodeExecutor(host=host, sandbox=False)
    await executor.stop()
    async with executor:
        await executor.stop()
        await executor.stop()


async def test_starting_twice_is_an_error_that_says_so(executor: CodeExecutor) -> None:
    with pytest.raises(StateError, match="already started"):
        await executor.start()
    assert (await executor.execute("1")).ok


async def test_two_starts_at_once_make_one_kernel(host: Host) -> None:
    executor = CodeExecutor(host=host, sandbox=False)
    first, second = await asyncio.gather(executor.start(), executor.start(), return_exceptions=True)
    assert first is None
    assert isinstance(second, StateError)
    await executor.stop()


async def _consume(executor: CodeExecutor) -> None:
    async for _ in executor.stream("1"):
        pass


_USES: dict[str, Callable[[CodeExecutor], Any]] = {
    "execute": lambda executor: executor.execute("1"),
    "stream": _consume,
    "reset": lambda executor: executor.reset(),
    "cancel": lambda executor: executor.cancel(),
    "session": lambda executor: executor.session,
    "exec": lambda executor: executor.exec("true"),
    "spawn": lambda executor: executor.spawn("true"),
    "processes": lambda executor: executor.processes(),
    "fs": lambda executor: executor.fs,
}


@pytest.mark.parametrize("use", _USES.values(), ids=_USES.keys())
async def test_use_before_the_start_says_how_to_start(host: Host, use: Callable[[CodeExecutor], Any]) -> None:
    with pytest.raises(StateError, match=r"not started: use 'async with' .*, or start\(\) it first"):
        await use(CodeExecutor(host=host, sandbox=False))


async def test_use_after_the_stop_says_that_it_is_stopped(host: Host) -> None:
    async with CodeExecutor(host=host, sandbox=False) as executor:
        pass
    for use in _USES.values():
        with pytest.raises(StateError, match=r"stopped; start\(\) it again or make a new one"):
            await use(executor)


async def test_an_error_in_the_block_stops_the_executor(host: Host) -> None:
    before = len(below(os.getpid()))
    with pytest.raises(ZeroDivisionError):
        async with CodeExecutor(host=host, sandbox=False) as executor:
            await executor.execute(str(1 // 0))
    await eventually(lambda: len(below(os.getpid())) <= before)
    with pytest.raises(StateError):
        await executor.execute("1")


async def test_an_executor_that_nobody_stopped_is_cleaned_up_and_reported(host: Host) -> None:
    before = len(below(os.getpid()))
    executor = CodeExecutor(host=host, sandbox=False)
    await executor.start()
    await eventually(lambda: len(below(os.getpid())) > before)
    holder = [executor]
    del executor
    with pytest.warns(ResourceWarning, match=r"dropped without stop\(\): use 'async with'"):
        holder.clear()
    await eventually(lambda: len(below(os.getpid())) <= before)
    await eventually(lambda: not running._dropped)


async def test_garbage_may_be_collected_in_any_thread(host: Host) -> None:
    before = len(below(os.getpid()))
    holder = [CodeExecutor(host=host, sandbox=False)]
    await holder[0].start()

    def collect() -> None:
        with pytest.warns(ResourceWarning):
            holder.clear()

    await asyncio.to_thread(collect)
    await eventually(lambda: len(below(os.getpid())) <= before)
    await eventually(lambda: not running._dropped)


# -- cells -------------------------------------------------------------------------------------------------------------


async def test_an_error_carries_the_whole_result(executor: CodeExecutor) -> None:
    with pytest.raises(CodeExecutionError) as caught:
        await executor.execute("print('before')\nraise KeyError('gone')")
    result = caught.value.result
    assert result is not None
    assert (result.status, result.output) == ("error", "before\n")
    assert result.error is not None
    assert (result.error.ename, result.error.evalue) == ("KeyError", "'gone'")
    assert "KeyError: 'gone'" in str(caught.value)


async def test_a_timeout_carries_the_whole_result_and_the_session_goes_on(executor: CodeExecutor) -> None:
    await executor.execute("x = 1")
    with pytest.raises(ExecutionTimeoutError, match=r"exceeded its timeout of 0\.10s.*Variables are kept") as caught:
        await executor.execute("print('before')\nwhile True: pass", timeout=0.1)
    result = caught.value.result
    assert result is not None
    assert (result.status, result.output, result.recovery) == ("timeout", "before\n", "interrupted")
    assert (await executor.execute("x")).text == "1"


async def test_a_kernel_that_dies_raises_its_cause_and_costs_the_cell_that_ended_it_only(executor: CodeExecutor) -> None:
    await executor.execute("x = 1")
    with pytest.raises(CodeExecutionError, match=r"KernelDied.*status 3.*variables have the values from then") as caught:
        await executor.execute("x = 2; import os; os._exit(3)")
    assert caught.value.result is not None
    assert not caught.value.result.state_lost
    assert (await executor.execute("x")).text == "1"


# -- streams -----------------------------------------------------------------------------------------------------------


async def test_chunks_come_while_the_cell_runs(executor: CodeExecutor) -> None:
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def reply(_prompt: str) -> str:
        return await answer

    texts = []
    async for item in executor.stream("print('first')\nprint('got', input())", chunks=True, on_input=reply):
        if isinstance(item, CodeExecutionChunk):
            texts.append(item.text)
            if not answer.done():
                # The cell waits for an answer that is given only when its output is here.
                answer.set_result("it")
        else:
            assert isinstance(item, CodeExecutionResult)
            assert item.output == "".join(texts)
    assert texts[0] == "first\n"


# -- options -----------------------------------------------------------------------------------------------------------


_REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a port of the gateway": ({"kernel_gateway_port": -1}, InvalidInputError, "kernel_gateway_port"),
    "a configuration of no sandbox": (
        {"sandbox": False, "sandbox_config": "s.json"},
        InvalidInputError,
        "sandbox=False turns it off",
    ),
    "something like a bool": ({"sandbox": "no"}, InvalidInputError, "sandbox must be True or False, not 'no'"),
    "rules by their file": ({"rules": "rules.toml"}, InvalidInputError, r"read a file with Rules.load"),
    "no configuration": ({"sandbox": True, "sandbox_config": "/no.json"}, InvalidInputError, "/no.json cannot be read"),
    "an isolation": (
        {"sandbox": True, "isolate": "none"},
        InvalidInputError,
        "isolate must be 'native', 'landlock' or 'srt', not 'none'",
    ),
    "a misspelled name": ({"workdir": "/tmp"}, InvalidInputError, "there is no option 'workdir'; did you mean 'working_dir'"),
    "a level": ({"log_level": "LOUD"}, InvalidInputError, "log_level must be one of DEBUG, INFO.*not 'LOUD'"),
    "a negative wait": ({"approval_timeout": -1}, InvalidInputError, "approval_timeout must be a positive number.*not -1"),
    "no wait at all": ({"connect_timeout": 0}, InvalidInputError, "connect_timeout must be a positive number.*not 0"),
    "a wait in words": ({"connect_timeout": "long"}, InvalidInputError, "connect_timeout must be a positive.*not 'long'"),
}


def test_what_cannot_be_is_refused_by_the_constructor() -> None:
    for options, error, message in _REFUSED.values():
        with pytest.raises(error, match=message):
            CodeExecutor(**options)


async def test_an_argument_that_execute_does_not_have_is_named(executor: CodeExecutor) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"language": "bash"}, "execute() has no argument 'language': a cell whose first line is %%bash is a script for bash"),
        ({"timout": 5}, "execute() has no argument 'timout'; did you mean 'timeout'?"),
        ({"kernel": "x"}, "execute() has no argument 'kernel'"),
    ]
    for given, said in cases:
        with pytest.raises(TypeError) as caught:
            await executor.execute("ran = True", **given)
        assert str(caught.value) == said


def test_the_log_level_is_that_of_the_cellblock_logger_and_the_default_leaves_it_alone() -> None:
    logger = logging.getLogger("cellblock")
    before = logger.level
    try:
        CodeExecutor(log_level="DEBUG")
        assert logger.level == logging.DEBUG
        CodeExecutor()
        assert logger.level == logging.DEBUG
        logger.setLevel(logging.NOTSET)
        CodeExecutor()
        assert logger.level == logging.WARNING
    finally:
        logger.setLevel(before)


# -- the sandbox, which is the default ---------------------------------------------------------------------------------

CONFINED = "'NoNewPrivs:\\t1' in open('/proc/self/status').read()"


@pytest.mark.slow
async def test_a_host_without_sandboxes_does_not_take_that_from_an_executor(tmp_path: Path) -> None:
    # It starts nothing for sessions without a sandbox: it was not asked for any.
    async with Host(isolate="none", launch="spawn") as host, CodeExecutor(host=host, working_dir=tmp_path) as executor:
        assert (await executor.execute(CONFINED)).text == "True"


async def test_a_sandbox_is_left_out_by_that_word(executor: CodeExecutor) -> None:
    assert (await executor.execute(CONFINED)).text == "False"


@pytest.mark.srt
async def test_an_executor_is_isolated_like_the_other_sessions_of_its_host(tmp_path: Path) -> None:
    async with Host(isolate="srt") as host, CodeExecutor(host=host, working_dir=tmp_path) as executor:
        assert executor.session.isolate == "srt"


async def test_a_tool_server_port_is_served_where_one_is_asked_for(host: Host, unused_tcp_port: int) -> None:
    executor = CodeExecutor(host=host, sandbox=False, tool_server_port=unused_tcp_port)
    async with executor:
        with pytest.raises(ToolRunnerError, match="the bearer token is missing or wrong"):
            await ToolRunner("nobody", port=unused_tcp_port).run("tool", {})
        runner = ToolRunner("nobody", port=unused_tcp_port, token=executor.tool_server_token)
        with pytest.raises(ToolRunnerError, match="there is no MCP server 'nobody'"):
            await runner.run("tool", {})
        with pytest.raises(ToolRunnerError, match="does not exist here"):
            await runner.reset()
        pool.close()
    with pytest.raises(ToolRunnerError, match="no tool server at"):
        await ToolRunner("nobody", port=unused_tcp_port).run("tool", {})


async def test_a_tool_server_port_that_others_could_reach_is_refused(host: Host, unused_tcp_port: int) -> None:
    before = len(below(os.getpid()))
    executor = CodeExecutor(host=host, sandbox=False, tool_server_host="0.0.0.0", tool_server_port=unused_tcp_port)
    with pytest.raises(InvalidInputError, match="from this machine only"):
        await executor.start()
    await eventually(lambda: len(below(os.getpid())) <= before)


# -- what is at hand ---------------------------------------------------------------------------------------------------


async def test_an_executor_says_in_one_line_what_it_is(zygote_host: Host, tmp_path: Path) -> None:
    executor = CodeExecutor(working_dir=tmp_path, images_dir=tmp_path, sandbox=False, host=zygote_host)
    assert repr(executor) == f"<CodeExecutor {executor.session_id} not started>"
    async with executor:
        assert repr(executor) == f"<CodeExecutor {executor.session_id} started in {tmp_path}>"
        assert re.fullmatch(r"<Session .* running, isolate=none, in '.*", repr(executor.session))
        await executor.files.write("data.txt", b"from outside")
        assert (await executor.execute("print(open('data.txt').read())")).text == "from outside"
        with pytest.raises(InvalidInputError, match="name the packages to install"):
            await executor.install()
    assert repr(executor) == f"<CodeExecutor {executor.session_id} stopped>"
    with pytest.raises(StateError, match="stopped"):
        _ = executor.files


def test_a_plain_with_says_what_to_write() -> None:
    with pytest.raises(TypeError, match="a CodeExecutor is an async context manager: write 'async with'") as caught:
        CodeExecutor().__enter__()
    assert str(caught.value).endswith("; or use SyncCodeExecutor, which needs no event loop")


@pytest.mark.slow
def test_use_in_another_asyncio_run_says_that_the_session_ended_with_the_first(tmp_path: Path) -> None:
    executor = CodeExecutor(sandbox=False, working_dir=tmp_path)
    asyncio.run(executor.start())
    for use in (lambda: executor.execute("1"), executor.start, executor.variables):
        with pytest.raises(StateError, match="belongs to the event loop that started it, and its session has ended"):
            asyncio.run(use())

    async def again() -> str | None:
        await executor.stop()
        async with executor:
            return (await executor.execute("1")).text

    assert asyncio.run(again()) == "1"


async def test_use_from_another_thread_or_loop_says_so(executor: CodeExecutor) -> None:
    with pytest.raises(StateError, match="call_soon_threadsafe"):
        await asyncio.to_thread(executor.cancel)
    with pytest.raises(StateError, match="another event loop"):
        await asyncio.to_thread(lambda: asyncio.run(executor.execute("1")))


@pytest.mark.slow
def test_the_first_start_loads_what_it_needs_in_a_thread() -> None:
    program = """
import asyncio, sys, threading
from cellblock import CodeExecutor

class Watch:
    loaded = {}
    def find_spec(self, name, path=None, target=None):
        self.loaded[name] = threading.current_thread() is threading.main_thread()

async def main():
    executor = CodeExecutor(sandbox=False)
    sys.meta_path.insert(0, Watch())
    async with executor:
        names = "cellblock.host.shared", "cellblock.host.session", "cellblock.service.session.services"
        print([Watch.loaded.get(name) for name in names])

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("[False, False, False]\n", "")


# -- how an execution ends, who decides, and who listens ---------------------------------------------------------------


@pytest.mark.slow
async def test_without_a_check_the_result_says_how_it_ended(executor: CodeExecutor) -> None:
    assert (await executor.execute("1 / 0", check=False)).status == "error"
    assert (await executor.execute("while True: pass", timeout=0.1, check=False)).status == "timeout"
    events = [event async for event in executor.stream("1 / 0", check=False)]
    assert [event.status for event in events if isinstance(event, CodeExecutionResult)] == ["error"]
    with pytest.raises(InvalidInputError):
        await executor.execute("a\0b", check=False)  # that is not the code's failure


@pytest.mark.slow
async def test_an_executor_has_a_timeout_for_all_its_code(zygote_host: Host, tmp_path: Path) -> None:
    async with CodeExecutor(host=zygote_host, sandbox=False, working_dir=tmp_path, timeout=0.1) as executor:
        assert (await executor.execute("while True: pass", check=False)).status == "timeout"
        with pytest.raises(ExecutionTimeoutError, match=r"timeout of 0\.10s"):
            await executor.execute("while True: pass")
        with pytest.raises(ExecutionTimeoutError):
            [event async for event in executor.stream("while True: pass")]
        (branch,) = await executor.fork(1)
        assert branch.timeout == 0.1
        await branch.stop()
        assert (await executor.execute("import time; time.sleep(0.2)", timeout=None)).ok
        assert (await executor.execute("time.sleep(0.2)", timeout=120.0)).ok  # the same number as the default, and given
    with pytest.raises(InvalidInputError, match="timeout must be a positive number"):
        CodeExecutor(timeout=0)


def test_who_approves_must_be_one_of_those_that_there_are() -> None:
    cases: list[Any] = ["yes", None, True, {"deny": "x"}]
    for given in cases:
        with pytest.raises(InvalidInputError, match="approve must be 'auto', 'ask' or Rules"):
            CodeExecutor(approve=given)


@pytest.mark.slow
async def test_where_nobody_can_be_asked_code_gets_what_rules_allow_and_no_more(zygote_host: Host, tmp_path: Path) -> None:
    rules = Rules((Rule("allow", kind="shell", arguments={"command": "echo a"}),))
    for options in ({"approve": "ask"}, {"approve": rules}, {"approve": "ask", "rules": rules}):
        made = CodeExecutor(host=zygote_host, sandbox=False, working_dir=tmp_path, approve_shell_cmds=True, **options)
        async with made as executor:
            for keywords in ({}, {"on_stdout": print}):
                result = await executor.execute("!echo b", check=False, **keywords)  # type: ignore[arg-type]
                assert "execute() cannot ask for approval: run the code with stream()" in result.for_model()
            allowed = await executor.execute("!echo a", check=False)
            assert allowed.ok is ("approve" in options and rules in options.values())
            async for event in executor.stream("!echo b"):
                if isinstance(event, ApprovalRequest):
                    await event.accept()
            assert isinstance(event, CodeExecutionResult)
            assert event.text == "b"
    with pytest.raises(InvalidInputError, match="approve and rules both give rules"):
        CodeExecutor(approve=rules, rules=rules)


@pytest.mark.slow
async def test_output_is_heard_as_it_comes(executor: CodeExecutor) -> None:
    heard: list[tuple[str, str | None]] = []

    async def hear(item: OutputItem) -> None:
        await asyncio.sleep(0)
        heard.append((item.kind, item.text))

    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\ndisplay('shown')\n6 * 7"
    result = await executor.execute(
        code,
        on_stdout=lambda text: heard.append(("stdout", text)),
        on_stderr=lambda text: heard.append(("stderr", text)),
        on_result=hear,
    )
    assert result.return_value == "42"
    assert heard == [
        ("stdout", "out\n"),
        ("stderr", "err\n"),
        ("display_data", "'shown'"),
        ("execute_result", "42"),
    ]
    assert (await executor.execute("print('only')", on_result=hear)).text == "only"
    assert len(heard) == 4


@pytest.mark.slow
async def test_a_listener_that_fails_stops_the_code(executor: CodeExecutor) -> None:
    with pytest.raises(ZeroDivisionError):
        await executor.execute("import time\nx = 1\nprint('a')\ntime.sleep(60)", on_stdout=lambda _: 1 // 0)
    assert (await executor.execute("x")).return_value == "1"


async def test_a_cell_that_is_listened_to_asks_for_nothing_in_vain(zygote_host: Host, tmp_path: Path) -> None:
    made = CodeExecutor(host=zygote_host, sandbox=False, working_dir=tmp_path, approve_shell_cmds=True)
    async with made as executor:
        heard: list[str] = []
        assert (await executor.execute("!echo a", on_stdout=heard.append)).ok
        assert "".join(heard) == "a\n"


@pytest.mark.slow
async def test_pictures_are_written_where_the_session_works(zygote_host: Host, tmp_path: Path) -> None:
    """A model that is told their names can open them."""
    png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    async with CodeExecutor(host=zygote_host, sandbox=False, working_dir=tmp_path) as executor:
        code = f"from IPython.display import Image\nimport base64\nImage(base64.b64decode('{png}'))"
        result = await executor.execute(code)
        assert result.images[0].parent == tmp_path / "images"
        assert (await executor.execute(f"len(open({str(result.images[0])!r}, 'rb').read()) > 50")).return_value == "True"


async def test_what_does_not_fit_into_the_text_for_a_model_is_in_a_file(host: Host, tmp_path: Path) -> None:
    async with CodeExecutor(host=host, working_dir=tmp_path, sandbox=False) as executor:
        short = await executor.execute("6 * 7")
        assert await executor.for_model(short) == "42"
        assert os.listdir(tmp_path) == []
        long = await executor.execute("print('line\\n' * 1500)")
        text = await executor.for_model(long, 400)
        assert len(text) <= 400
        path = text.partition("characters left out: read ")[2].partition(" …")[0]
        assert (await executor.execute(f"len(open({path!r}).read())")).return_value == "7499"
        await executor.execute("import shutil; shutil.rmtree('outputs'); open('outputs', 'w').close()")
        text = await executor.for_model(long, 400)
        assert "characters left out" in text
        assert "read outputs" not in text
        with pytest.raises(InvalidInputError):
            await executor.for_model(long, 0)
    with pytest.raises(StateError):
        await executor.for_model(long, 400)


@pytest.mark.slow
async def test_a_port_is_exposed_to_a_browser_until_the_executor_stops(native_host: Host, tmp_path: Path) -> None:
    async with CodeExecutor(host=native_host, working_dir=tmp_path, recovery="none") as executor:
        with pytest.raises(NotFoundError, match="nothing listens at port 8501 of the session: start a server first"):
            await executor.expose(8501)
        await executor.execute(IN_A_SESSION)
        first, second = await executor.expose(8501), await executor.expose(8501, bare=True)
        assert first.startswith("http://frame.p8501-")
        place, _, query = second.partition("/?")
        host, port = place.removeprefix("http://"), int(place.rpartition(":")[2])
        assert port == int(first.partition("/?")[0].rpartition(":")[2])
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            entered = await client.get(f"/?{query}", headers={"Host": host})
            cookie = entered.headers["Set-Cookie"].partition(";")[0]
            assert (await client.get("/", headers={"Host": host, "Cookie": cookie})).text == "page"
            assert (await client.get("/", headers={"Cookie": cookie})).status_code == 421
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
