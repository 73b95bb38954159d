"""Servers over stdio: shared, restarted, stopped, and each trouble with one of them one clear error."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cellblock import McpServerError, StateError
from cellblock.tools.mcp import stdio
from cellblock.tools.mcp.lines import Lines, Oversized
from cellblock.tools.mcp.params import ServerParams, parse_params
from cellblock.tools.mcp.servers import Servers
from processes import alive, below, command_line, eventually
from suite import first_quick

HOSTILE = str(Path(__file__).parents[2] / "servers" / "hostile_server.py")
BIN = Path(sys.executable).parent


def hostile(mode: str = "good", file: Path | str = os.devnull) -> ServerParams:
    return parse_params("hostile", {"command": sys.executable, "args": [HOSTILE, mode, str(file)]})


MODES = ("good", "pages", "endless-pages", "fat-pages", "dies", "garbage", "hangs", "greets", "stubborn", "old")
PARAMS: dict[str, ServerParams] = {mode: hostile(mode) for mode in MODES}
PARAMS["missing"] = parse_params("missing", {"command": "no-such-program"})
PARAMS["nowhere"] = parse_params("nowhere", {"command": sys.executable, "cwd": "/no/such/place"})


@pytest.fixture
async def servers(nothing_left_behind: None) -> AsyncIterator[Servers]:
    async with Servers(PARAMS.__getitem__, connect_timeout=20, environment=os.environ) as servers:
        yield servers


@pytest.fixture(scope="module")
async def good() -> AsyncIterator[Servers]:
    """Servers of which the good one runs, for tests that leave it as it is."""
    async with Servers(PARAMS.__getitem__, connect_timeout=20, environment=os.environ) as servers:
        await still_works(servers)
        yield servers


async def still_works(servers: Servers, server: str = "good") -> str:
    """Call a server, and return the id of its process."""
    outcome = await servers.call(server, "pid", {}, timeout=30)
    return outcome.text


async def test_a_server_starts_at_its_first_use_and_is_shared(servers: Servers) -> None:
    before = len(below(os.getpid()))
    assert len({await still_works(servers) for _ in range(3)}) == 1
    pids = await asyncio.gather(*(still_works(servers, "greets") for _ in range(10)))
    assert len({*pids}) == 1
    assert len(below(os.getpid())) == before + 4  # two servers, each with its keeper


async def test_the_tools_are_listed_page_by_page(good: Servers) -> None:
    one, several = await good.list_tools("good"), await good.list_tools("pages")
    assert one == several
    assert {"echo", "wrong"} <= {tool.name for tool in one}
    assert {tool.name: tool.output_schema for tool in one}["echo"] is None
    await good.stop("pages")


@pytest.mark.parametrize(
    ("server", "said"),
    first_quick(
        [
            ("missing", "could not be started(?s:.*)no-such-program: No such file or directory"),
            ("nowhere", "/no/such/place"),
            ("dies", "exit status 1(?s:.*)I was born to die"),
            ("garbage", "to stdout something other than a message: b'this is no JSON'"),
            ("old", "Unsupported protocol version"),
        ],
        2,
    ),
)
async def test_a_server_that_does_not_start_says_why(good: Servers, server: str, said: str) -> None:
    with pytest.raises(McpServerError, match=said) as caught:
        await good.call(server, "echo", {})
    assert f"'{server}'" in str(caught.value)
    assert caught.value.server == server
    assert await still_works(good)


async def test_a_caller_that_leaves_does_not_stop_the_start_for_others(servers: Servers) -> None:
    first, second = (asyncio.create_task(still_works(servers)) for _ in range(2))
    await eventually(lambda: "good" in servers._connections)
    first.cancel()
    assert await second


async def test_a_server_that_dies_in_a_call_is_started_again_by_the_next(servers: Servers) -> None:
    first = await still_works(servers)
    slow = asyncio.create_task(servers.call("good", "slow", {"seconds": 60}))
    with pytest.raises(McpServerError, match=r"exit status 7(?s:.*)Traceback: I cannot go on"):
        await servers.call("good", "die", {})
    with pytest.raises(McpServerError, match="'slow' of MCP server 'good' was interrupted: it ended with exit status 7"):
        await slow
    assert await still_works(servers) != first


@pytest.mark.slow
async def test_a_server_that_dies_between_calls_is_started_again(servers: Servers) -> None:
    first = await still_works(servers)
    os.kill(int(first), signal.SIGKILL)
    await eventually(lambda: not servers._connections["good"].usable)
    assert await still_works(servers) != first


@pytest.mark.slow
async def test_a_line_without_end_ends_the_connection(servers: Servers) -> None:
    with pytest.raises(McpServerError, match="a line of more than"):
        await servers.call("good", "endless", {}, timeout=60)
    assert await still_works(servers)


async def test_a_result_that_is_none_is_an_error_of_its_call(good: Servers) -> None:
    cases: list[tuple[str, str]] = [
        ("bad_image", "invalid base64"),
        ("nonsense", "returned something that is not a result"),
        ("listed", "returned something invalid: structured content that is not an object"),
        ("unheard-of", "Unknown tool: unheard-of"),
    ]
    for tool, said in cases:
        first = await still_works(good)
        with pytest.raises(McpServerError, match=said) as caught:
            await good.call("good", tool, {})
        assert f"tool '{tool}' of MCP server 'good'" in str(caught.value)
        assert await still_works(good) == first


@pytest.fixture
async def lines_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[int]]:
    """How many lines of servers were taken between two turns of another task of the loop: now, and at most."""
    lines, take = [0, 0], Lines.next

    def counted(self: Lines) -> bytes | Oversized | None:
        lines[0] += 1
        lines[1] = max(lines)
        return take(self)

    async def others() -> None:
        while True:
            lines[0] = 0
            await asyncio.sleep(0)

    monkeypatch.setattr(Lines, "next", counted)
    task = asyncio.create_task(others())
    yield lines
    task.cancel()


async def test_no_schema_of_a_server_is_run_in_the_loop(good: Servers) -> None:
    """What a result has to be is for whoever uses it to check, in a process of its own."""
    cases: list[tuple[str, dict[str, Any]]] = [("backtracks", {}), ("rows", {"count": 20_000}), ("wrong", {}), ("bare", {})]
    for tool, arguments in cases:
        outcome = await good.call("good", tool, arguments, timeout=30)
        assert outcome.is_error is False


@pytest.mark.slow
async def test_a_server_that_floods_its_output_holds_up_nobody(
    servers: Servers, lines_in_a_turn: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "_MAX_BLANK", 10_000)
    with pytest.raises(McpServerError, match="10000 empty lines"):
        await servers.call("good", "blank", {}, timeout=30)
    assert 0 < lines_in_a_turn[1] < 100
    await servers.stop("good")
    assert await still_works(servers)


@pytest.mark.slow
async def test_a_server_that_asks_without_end_and_reads_no_answer_is_ended(servers: Servers) -> None:
    with pytest.raises(McpServerError, match="more than 32 requests and did not read the answers"):
        await servers.call("good", "asks", {}, timeout=15)
    assert await still_works(servers)


async def test_a_server_cannot_send_descriptors_back_on_its_input(good: Servers) -> None:
    """The loop would close them. That takes long for the last descriptor of a large file or of a connection that lingers."""
    code = """
import array, socket
try:
    with socket.socket(fileno=0) as end:
        end.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [2]))])
        said = end.detach()
except OSError as error:
    said = error.strerror
"""
    outcome = await good.call("good", "python", {"code": code}, timeout=30)
    assert outcome.text == "'Socket operation on non-socket'"
    assert await still_works(good)


@pytest.mark.slow
async def test_notifications_start_no_tasks(servers: Servers, lines_in_a_turn: list[int]) -> None:
    await still_works(servers)
    before, most = len(asyncio.all_tasks()), 0
    call = asyncio.create_task(servers.call("good", "notices", {}, timeout=0.3))
    while not call.done():
        most = max(most, len(asyncio.all_tasks()))
        await asyncio.sleep(0)
    with pytest.raises(McpServerError, match="did not answer within"):
        await call
    assert most <= before + 5
    assert 0 < lines_in_a_turn[1] < 100
    await servers.stop("good")
    assert await still_works(servers)


async def test_a_result_of_too_many_values_costs_its_own_call_only(good: Servers) -> None:
    with pytest.raises(McpServerError, match="it sent a message of more than 2000000 values"):
        await good.call("good", "values", {"row": "[],", "count": 1_010_000}, timeout=30)
    assert await still_works(good)


async def test_50_000_rows_come_as_they_are_and_are_not_decoded_here(good: Servers) -> None:
    outcome = await good.call("good", "rows", {"count": 50_000}, timeout=60)
    assert (outcome.structured, outcome.text) == (None, "")
    assert json.loads(outcome.encoded or b"") == {"n": [{"n": row} for row in range(50_000)]}


async def test_tools_that_a_server_announces_are_reported_after_the_call() -> None:
    heard: list[Any] = []

    async def on_tools(*said: Any) -> None:
        heard.append(said)

    async with Servers(PARAMS.__getitem__, connect_timeout=20, environment=os.environ, on_tools=on_tools) as servers:
        assert not servers.runs("good")
        await servers.call("good", "echo", {})
        assert (servers.runs("good"), heard) == (True, [])
        await servers.call("good", "grow", {})
        await servers.call("good", "echo", {})
        ((server, tools, instructions),) = heard
        assert (server, instructions) == ("good", "Be kind.")
        assert "grown" in {tool.name for tool in tools}
        assert tools == await servers.list_tools("good")


@pytest.mark.slow
async def test_a_server_has_the_time_to_start_that_its_parameters_give() -> None:
    slow = parse_params("hangs", {"command": sys.executable, "args": [HOSTILE, "hangs"], "startup_timeout_sec": 0.2})
    async with Servers(lambda _: slow, connect_timeout=20, environment=os.environ) as servers:
        with pytest.raises(McpServerError, match=r"within 0\.2 s \('startup_timeout_sec' in its parameters: longer\)"):
            await servers.list_tools("hangs")


async def test_a_resource_is_read_like_a_call(good: Servers) -> None:
    checked: list[Any] = []
    outcome = await good.call("good", "resources/read", {"uri": "demo://x"}, check=checked.append)
    assert (outcome.text, [resource.data for resource in outcome.resources]) == ("all of demo://x", [b"PDF"])
    assert checked == [{}]  # the server lists no tool of this name


@pytest.mark.slow
async def test_lists_are_bounded_in_bytes(servers: Servers) -> None:
    with pytest.raises(McpServerError, match=r"'fat-pages' failed: it has more than 10000 tools or 8388608 bytes"):
        await servers.list_tools("fat-pages")


async def test_a_check_sees_what_a_tool_is_now_and_can_stop_the_call(good: Servers) -> None:
    seen: list[Any] = []
    await good.call("good", "turns_destructive", {"turn": True}, check=seen.append)

    async def turned() -> bool:
        await good.call("good", "turns_destructive", {}, check=seen.append)
        return bool(seen[-1]["destructive"] == "true")

    assert seen[0]["destructive"] == "false"
    await eventually(turned)
    await good.call("good", "texts", {}, check=seen.append)

    def stop(now: object) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        await good.call("good", "die", {}, check=stop)
    with pytest.raises(McpServerError, match="unheard-of"):
        await good.call("good", "unheard-of", {}, check=seen.append)
    assert seen[-1] == {}


async def test_a_timeout_and_a_cancellation_reach_the_server(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    async with Servers(lambda _: hostile("good", heard), environment=os.environ) as servers:
        await still_works(servers)
        with pytest.raises(
            McpServerError, match=r"'hang' of MCP server 's' did not answer within 0.2 s; the call was cancelled"
        ):
            await servers.call("s", "hang", {}, timeout=0.2)
        await eventually(lambda: "notifications/cancelled" in heard.read_text())
        assert await still_works(servers, "s")
        heard.write_text("")
        call = asyncio.create_task(servers.call("s", "hang", {}))
        await eventually(lambda: heard.exists() and '"hang"' in heard.read_text())
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await eventually(lambda: "notifications/cancelled" in heard.read_text())
        assert await still_works(servers, "s")


async def test_progress_and_logs_reach_those_who_listen(good: Servers) -> None:
    progress: list[Any] = []
    logs: list[Any] = []
    await good.call(
        "good", "chatty", {}, on_progress=lambda *told: progress.append(told), on_log=lambda *told: logs.append(told)
    )
    assert progress == [(0.0, 3.0, None), (1.0, 3.0, None), (2.0, 3.0, None)]
    assert logs == [("info", "step 0"), ("info", "step 1"), ("info", "step 2")]
    await good.call("good", "chatty", {})
    assert len(progress) == len(logs) == 3


async def test_each_of_many_calls_gets_its_own_answer(good: Servers) -> None:
    async def call(number: int) -> None:
        assert json.loads((await good.call("good", "echo", {"n": number, "nothing": None})).text) == {
            "n": number,
            "nothing": None,
        }

    await asyncio.gather(*map(call, range(200)))
    assert not good._connections["good"]._dialogue._requests._waiting  # type: ignore[union-attr]


async def test_what_the_lookup_raises_is_what_the_caller_gets(good: Servers) -> None:
    with pytest.raises(KeyError):
        await good.call("unknown", "echo", {})


async def test_a_reset_stops_the_servers_and_everything_below(servers: Servers) -> None:
    left = json.loads((await servers.call("good", "children", {})).text)
    assert all(map(alive, left))
    await servers.reset()
    assert not any(map(alive, left))
    assert await still_works(servers) not in map(str, left)


@pytest.mark.slow
async def test_a_reset_interrupts_calls(servers: Servers) -> None:
    await still_works(servers)
    call = asyncio.create_task(servers.call("good", "hang", {}))
    await eventually(lambda: len(servers._connections["good"]._dialogue._requests._waiting))  # type: ignore[union-attr]
    await servers.reset()
    with pytest.raises(McpServerError, match="'hang' of MCP server 'good' was interrupted: it was stopped"):
        await call


@pytest.mark.slow
async def test_a_server_that_does_not_want_to_end_is_killed(servers: Servers) -> None:
    pid = int(await still_works(servers, "stubborn"))
    await servers.reset()
    assert not alive(pid)


@pytest.mark.slow
async def test_nothing_starts_after_the_close(servers: Servers) -> None:
    await still_works(servers)
    await servers.close()
    for use in (servers.call("good", "echo", {}), servers.list_tools("good")):
        with pytest.raises(StateError, match="closed"):
            await use


async def test_a_crash_takes_what_the_server_left_with_it(servers: Servers) -> None:
    left = json.loads((await servers.call("good", "children", {})).text)
    os.kill(left[0], signal.SIGKILL)
    await eventually(lambda: not any(map(alive, left)))


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["host", "keeper"])
async def test_no_server_outlives_its_host_or_its_keeper(victim: str) -> None:
    program = textwrap.dedent(
        f"""
        import asyncio, os
        from cellblock.tools.mcp.servers import Servers
        from cellblock.tools.mcp.params import parse_params
        async def main():
            params = parse_params("s", {{"command": {sys.executable!r}, "args": [{HOSTILE!r}, "stubborn"]}})
            servers = Servers(lambda _: params, environment=os.environ)
            print((await servers.call("s", "children", {{}})).text, flush=True)
            await asyncio.sleep(1000)
        asyncio.run(main())
        """
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        left = json.loads(await asyncio.to_thread(host.stdout.readline))
        keeper = next(pid for pid in below(host.pid) if "keeper.py" in command_line(pid))
        assert all(map(alive, [*left, keeper]))
        if victim == "host":
            host.kill()
            await eventually(lambda: not any(map(alive, [*left, keeper])))
        else:
            os.kill(keeper, signal.SIGKILL)
            # The second line of defence holds for the server itself; its children are its own to end.
            await eventually(lambda: not alive(left[0]))
            for pid in left[1:]:
                os.kill(pid, signal.SIGKILL)
            host.kill()


@pytest.mark.slow
def test_the_sdk_is_not_loaded_before_a_server_is() -> None:
    imports = "import sys, cellblock.tools.mcp.servers, cellblock.tools.registry.servers"
    script = f"{imports}; print({{'mcp', 'pydantic', 'anyio'}} & {{*sys.modules}})"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.slow
def test_a_program_starts_while_the_sdk_is_loaded_and_ends_if_nobody_wants_it_any_more() -> None:
    script = textwrap.dedent(
        f"""
        import asyncio, os, sys, threading
        from cellblock.tools.mcp.servers import Servers
        from cellblock.tools.mcp.params import parse_params
        sys.path.append({str(Path(__file__).parents[2])!r})
        from processes import below, command_line, eventually
        seen = threading.Event()
        class SlowImport:  # the SDK is not loaded before the program was seen
            def find_spec(self, name, path, target=None):
                # The main thread asks only whether the SDK is installed.
                if name == "mcp" and threading.current_thread() is not threading.main_thread():
                    assert seen.wait(60)
        sys.meta_path.insert(0, SlowImport())
        async def main():
            params = parse_params("s", {{"command": {sys.executable!r}, "args": [{HOSTILE!r}, "good"]}})
            async with Servers(lambda _: params, environment=os.environ) as servers:
                call = asyncio.create_task(servers.call("s", "pid", {{}}))
                await eventually(lambda: any("hostile_server" in command_line(pid) for pid in below(os.getpid())))
                print("mcp" in sys.modules)
                seen.set()
                await servers.reset()
                print(below(os.getpid()), (await asyncio.gather(call, return_exceptions=True))[0])
        asyncio.run(main())
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\nset() MCP server 's' cannot be used: it was stopped\n"


@pytest.mark.slow
async def test_the_git_and_time_servers_of_pypi(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    given = {
        "git": {"command": str(BIN / "mcp-server-git"), "args": ["--repository", str(tmp_path)]},
        "time": {"command": str(BIN / "mcp-server-time"), "args": ["--local-timezone", "UTC"]},
    }
    async with Servers(lambda name: parse_params(name, given[name]), environment=os.environ) as servers:
        git, time = await asyncio.gather(servers.list_tools("git"), servers.list_tools("time"))
        assert len(git) == 12
        assert [bool(tool.output_schema) for tool in time] == [True, True]
        assert {tool.name: tool.read_only for tool in git}["git_status"] is True
        assert "No commits yet" in (await servers.call("git", "git_status", {"repo_path": str(tmp_path)})).text
        now = await servers.call("time", "get_current_time", {"timezone": "UTC"})
        assert now.structured["timezone"] == "UTC"  # type: ignore[index]
        assert (await servers.call("time", "get_current_time", {"timezone": "Mars"})).is_error
