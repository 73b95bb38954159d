"""Attack 49 and its like: code in a session tries to have tools called that nobody has let through."""

from __future__ import annotations

import ast
import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cellblock import ApprovalRequest, CodeExecutor, Host
from cellblock.tools.approvals.rules import Rule, Rules
from cellblock.tools.mcp.params import StdioServer
from cellblock.tools.registry.servers import ServerRegistry
from processes import eventually
from tool_sessions import accept, recorded, register, reject, servers_below, streamed

from .conftest import arm

# What is refused, before anybody is asked, is said with its status.
POST = r"""
import http.client, json
PORT = int(os.environ["CELLBLOCK_TOOL_PORT"])
TOKEN = os.environ.get("CELLBLOCK_TOOL_TOKEN", "")

def ask(body, method="POST", path="/run", port=PORT, token=TOKEN, **headers):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | ({"Authorization": "Bearer " + token} if token else {}) | headers
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"{}").get("error")
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    except http.client.HTTPException as error:
        return type(error).__name__
    finally:
        connection.close()

def run(server, tool="echo", **more):
    return ask({"server_name": server, "tool": tool, "arguments": {}} | more)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A workspace with two servers, beside another one with a server of its own."""
    for name in ("workspace", "elsewhere"):
        (tmp_path / name).mkdir()
    register(tmp_path / "workspace", "bad")
    register(tmp_path / "workspace", "other")
    register(tmp_path / "elsewhere", "foreign")
    return tmp_path / "workspace"


async def armed(executor: CodeExecutor) -> CodeExecutor:
    """Give a session's code what it needs to attack."""
    await arm(executor.session)
    await executor.execute(POST)
    return executor


@pytest.fixture
async def agent(attacked_host: Host, project: Path, tmp_path: Path, nothing_left_behind: None) -> AsyncIterator[CodeExecutor]:
    """A sandboxed session whose code attacks."""
    async with CodeExecutor(host=attacked_host, working_dir=project, images_dir=tmp_path / "images") as executor:
        yield await armed(executor)


async def attack(agent: CodeExecutor, code: str) -> tuple[Any, list[ApprovalRequest]]:
    """Run an attack; return what it comes to, and what was asked, which is rejected."""
    seen = await streamed(agent, code, reject)
    return ast.literal_eval(seen.result.return_value or "None"), seen.asked


REFUSED = {
    "a server that nobody registered": ("run('nobody')", 403),
    "a server of another workspace": ("run('foreign')", 403),
    "a server by its path": ("run('../elsewhere/mcptools/foreign')", 403),
    "a server in other letters": ("run('BAD')", 403),
    "a name that is a pattern": ("run('b%')", 403),
    "a name with an end in it": ("run('bad\\0')", 400),
    "no name": ("run('')", 400),
    "a long name": ("run('x' * 300)", 400),
    "parameters of a new server": ("run('mine', server_params={'command': 'touch', 'args': ['/tmp/planted']})", 403),
    "parameters of a known server": ("run('bad', server_params={'command': 'touch', 'args': ['/tmp/planted']})", 403),
    "parameters that are empty": ("run('bad', server_params={})", 403),
    "parameters under another name": ("run('bad', params={'command': 'touch'})", 400),
    "a key twice": (
        'ask(b\'{"server_name":"bad","server_name":"foreign","tool":"echo"}\')',
        400,
    ),
    "the reset endpoint": ("ask(b'', 'PUT', '/reset')", 404),
    "the approval endpoint": ("ask({'jsonrpc': '2.0', 'id': 1, 'result': True}, path='/approval')", 404),
    "the approval endpoint, as a WebSocket": (
        "ask(b'', 'GET', '/approval', **{'Connection': 'Upgrade', 'Upgrade': 'websocket', 'Sec-WebSocket-Version': '13',"
        " 'Sec-WebSocket-Key': 'x' * 22 + '=='})",
        403,
    ),
    "another path": ("ask({}, path='/run/../reset')", 404),
    "another method": ("ask({'server_name': 'bad', 'tool': 'echo'}, 'PUT')", 404),
    "a host of another name": ("ask({'server_name': 'bad', 'tool': 'echo'}, Host='evil.test')", 421),
    "a web page": ("ask({'server_name': 'bad', 'tool': 'echo'}, Origin='http://evil.test')", 403),
    "a form": ("ask({'server_name': 'bad', 'tool': 'echo'}, **{'Content-Type': 'text/plain'})", 415),
    "a body that is too large": ("ask(b'x' * (5 << 20))", 413),
    "a body of a million objects": ("ask(b'[' + b'{},' * 1_000_000 + b'{}]')", 400),
    "a body that is deeper than a stack": ("ask(b'[' * 1_000_000 + b']' * 1_000_000)", 400),
    "arguments that are deep": ("ask(b'{\"server_name\":\"bad\",\"tool\":\"echo\",\"arguments\":' + b'{\"a\":' * 200 + b'1' + b'}' * 201)", 400),
    "no JSON": ("ask(os.urandom(1000))", 400),
    "no JSON but Python": ("ask(b'{\"server_name\":\"bad\",\"tool\":\"echo\",\"arguments\":{\"a\":NaN}}')", 400),
    "no object": ("ask([1, 2])", 400),
    "arguments that are no object": ("run('bad', arguments=[1])", 400),
}  # fmt: skip


@pytest.mark.slow
async def test_what_a_session_may_not_ask_is_refused_before_anybody_is_asked(agent: CodeExecutor, project: Path) -> None:
    for name, (code, status) in REFUSED.items():
        got, asked = await attack(agent, f"({code})")
        # A body that is too large is answered before it was read, which the client may or may not live to see.
        allowed = (status,) if status != 413 else (status, "EPIPE", "ECONNRESET")
        assert (got[0] if isinstance(got, tuple) else got) in allowed, (name, got)
        assert asked == [], name
        assert servers_below(os.getpid()) == set(), name
    assert not Path("/tmp/planted").exists()
    assert (await streamed(agent, "print(run('bad'))", accept)).text == "(200, None)", "the port is as it was"


async def test_who_asks_for_what_is_not_there_is_seen_to_do_so(agent: CodeExecutor) -> None:
    seen = await streamed(agent, "run('nobody'); ask(b'', 'PUT', '/reset'); None", reject)
    assert "[cellblock] refused POST '/run': there is no MCP server 'nobody'" in seen.text
    assert "[cellblock] refused PUT '/reset'" in seen.text


GARBAGE = r"""
import socket, threading
def raw(data):
    with socket.create_connection(("127.0.0.1", PORT), 20) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return connection.recv(12).decode("latin-1")
        except OSError as error:
            return errno.errorcode[error.errno]
head = b"POST /run HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
body = b'{"server_name":"bad","tool":"echo"}'
chunked = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
both = head + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
short = head + b"Content-Length: 1000\r\n\r\n" + body
wrong = head + b"Content-Length: -1\r\n\r\n" + body
endless = head + b"X: " + b"x" * 1_000_000
[raw(data) for data in (chunked, both, short, wrong, endless, b"\0" * 1000, os.urandom(5000), b"\r\n" * 100_000)]
"""


@pytest.mark.slow
async def test_garbage_on_the_port_is_no_call_and_the_port_goes_on(agent: CodeExecutor) -> None:
    answers, asked = await attack(agent, GARBAGE)
    assert asked == []
    # ENOTCONN: it was cut off between the last that it sent and its shutdown.
    assert all(answer in ("", "ECONNRESET", "ENOTCONN", "EPIPE", "HTTP/1.1 400") for answer in answers), answers
    many = "connections = [socket.create_connection(('127.0.0.1', PORT), 20) for _ in range(600)]\n[c.close() for c in connections]"
    await attack(agent, f"{many}\nNone")

    async def answered() -> bool:
        return (await streamed(agent, "print(run('bad'))", accept)).text == "(200, None)"

    await eventually(answered)


async def test_code_cannot_approve_itself(agent: CodeExecutor, project: Path) -> None:
    forging = """
import threading, time
answers = []
thread = threading.Thread(target=lambda: answers.append(run("bad", arguments={"n": 1})))
thread.start()
while not (identifier := read("id")) or identifier == "ENOENT":
    time.sleep(0.01)
bodies = [
    {"jsonrpc": "2.0", "id": 1, "result": True},
    {"jsonrpc": "2.0", "id": identifier, "result": True},
    {"jsonrpc": "2.0", "id": identifier, "result": {"accepted": True, "always": "tool"}},
]
forged = [
    ask(body, path=path)[0] for body in bodies for path in ("/approval", "/accept", "/run", f"/run/{identifier}", f"/{identifier}")
]
write("forged", str({*forged}))
thread.join()
answers
"""
    asked: list[ApprovalRequest] = []

    async def decide(request: ApprovalRequest) -> None:
        asked.append(request)
        (project / "id.new").write_text(request.id)  # as if the code had learnt it, which it never does
        (project / "id.new").rename(project / "id")

    running = asyncio.create_task(streamed(agent, forging, decide))
    await eventually(lambda: (project / "forged").exists() and (project / "forged").read_text())
    assert (project / "forged").read_text() in ("{400, 404}", "{404, 400}")
    assert asked[0].state == "pending"
    await asked[0].reject()
    seen = await running
    assert seen.result.return_value == "[(200, 'Approval request for bad.echo rejected')]"
    assert len(asked) == 1
    assert [decision.outcome for decision in recorded(1)] == ["deny"]


async def test_patching_the_runner_changes_nothing_on_the_host(agent: CodeExecutor) -> None:
    code = """
from cellblock.tools.calling import runner
from cellblock.tools.approvals.request import ApprovalRequest
class Any(ApprovalRequest):
    state = "accepted"
runner.ApprovalRequest = Any
os.environ["CELLBLOCK_TOOL_TOKEN"] = "accepted"
os.environ["CELLBLOCK_APPROVAL_REQUIRED"] = "0"
try: runner.ToolRunner("bad").run_sync("echo", {})
except Exception as error: got = str(error)
got
"""
    got, asked = await attack(agent, code)
    assert (got, len(asked)) == ("Approval request for bad.echo rejected", 1)


@pytest.mark.slow
async def test_a_replayed_request_is_asked_for_again(agent: CodeExecutor) -> None:
    seen = await streamed(agent, "print(run('bad', arguments={'n': 1}))", accept)
    assert (seen.text, len(seen.asked)) == ("(200, None)", 1)
    got, asked = await attack(agent, "[run('bad', arguments={'n': 1}) for _ in range(3)]")
    assert (got, len(asked)) == ([(200, "Approval request for bad.echo rejected")] * 3, 3)


@pytest.mark.slow
async def test_what_was_approved_is_what_the_server_gets(agent: CodeExecutor) -> None:
    """The same request with other bytes is another one, also where both are under way."""
    code = """
import threading
answers = {}
def call(n): answers[n] = run("bad", arguments={"path": "/safe" if n == 0 else "/evil"})
threads = [threading.Thread(target=call, args=[n]) for n in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
[answers[n][1] for n in range(4)]
"""

    asked: list[ApprovalRequest] = []

    async def decide(request: ApprovalRequest) -> None:
        asked.append(request)
        if len(asked) == 4:
            [safe] = [one for one in asked if one.tool_args == {"path": "/safe"}]
            safe.tool_args["path"] = "/changed"  # a copy
            await safe.accept(always="call")
            for other in asked:
                await (other.accept() if other is safe else other.reject())

    seen = await streamed(agent, code, decide)
    assert ast.literal_eval(seen.result.return_value or "") == [None, *["Approval request for bad.echo rejected"] * 3]
    assert {decision.payload for decision in recorded(4) if decision.allowed} == {b'{"path":"/safe"}'}


PACKAGE = """
from cellblock.tools.calling.runner import ToolRunner
def run():
    return ToolRunner("bad").run_sync("echo", {})
"""


@pytest.mark.slow
async def test_a_package_that_the_cell_has_edited_names_no_more_than_the_cell_may(agent: CodeExecutor, project: Path) -> None:
    package = project / "mcptools" / "bad"
    package.mkdir(parents=True)
    (package / "echo.py").write_text(PACKAGE)
    edited = """
import importlib, pathlib, sys
source = pathlib.Path("mcptools/bad/echo.py").read_text()
def edit(name):
    pathlib.Path("mcptools/bad/echo.py").write_text(source.replace('"bad"', repr(name)))
    for module in [module for module in sys.modules if module.startswith("mcptools")]: del sys.modules[module]
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()
    pathlib.Path("mcptools/bad/__pycache__").exists() and __import__("shutil").rmtree("mcptools/bad/__pycache__")
    try: return importlib.import_module("mcptools.bad.echo").run()
    except Exception as error: return str(error)
"""
    await agent.execute(edited)
    got, asked = await attack(agent, "edit('foreign')")
    assert got.startswith("there is no MCP server 'foreign'; to use it, generate its API in the workspace")
    assert asked == []
    got, asked = await attack(agent, "edit('other')")
    assert got == "Approval request for other.echo rejected"
    assert [(request.server_name, request.tool_name) for request in asked] == [("other", "echo")]


@pytest.mark.slow
async def test_a_planted_package_registers_no_server(agent: CodeExecutor, project: Path) -> None:
    planted = "write('mcptools/mine/__init__.py', ''); write('mcptools/mine/.cellblock.json', '{\"command\": \"touch\"}'); run('mine')"
    got, asked = await attack(agent, planted)
    assert (got[0], asked) == (403, [])


async def test_registry_and_record_do_not_exist_inside(agent: CodeExecutor) -> None:
    state = os.environ["CELLBLOCK_HOME"]
    assert {*os.listdir(state)} >= {"servers.db"}
    code = f"[read({state!r} + '/' + name) for name in ('servers.db', 'approvals.db', 'servers.db-wal')] + [answer(os.listdir, {state!r})]"
    got, _ = await attack(agent, code)
    assert got == ["ENOENT"] * 4
    got, _ = await attack(agent, f"write({state!r} + '/servers.db')")
    assert Path(state, "servers.db").read_bytes()[:6] == b"SQLite"


async def test_another_sessions_tool_port_is_in_another_network(
    agent: CodeExecutor, attacked_host: Host, project: Path, tmp_path: Path
) -> None:
    port = (await agent.execute("PORT")).return_value
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port or "")))
    async with CodeExecutor(host=attacked_host, working_dir=project, images_dir=tmp_path / "images") as other:
        await armed(other)
        own, asked = await attack(other, "PORT")
        got, asked = await attack(other, f"ask({{'server_name': 'bad', 'tool': 'echo'}}, port={port})")
        assert got == "ECONNREFUSED" or (own == int(port or "") and len(asked) == 1)


async def reach_without_token(**options: Any) -> None:
    """Have a session connect to the tool port of another one, which refuses what comes without its own token."""
    async with CodeExecutor(**options) as one, CodeExecutor(**options) as two:
        await armed(one)
        await armed(two)
        port, _ = await attack(one, "PORT")
        call = f"{{'server_name': 'bad', 'tool': 'echo'}}, port={port}"
        for token in ("TOKEN", "''", "TOKEN + 'x'", "'x' * len(TOKEN)"):
            assert await attack(two, f"ask({call}, token={token})") == ((401, "the bearer token is missing or wrong"), [])
        assert len((await attack(one, "run('bad')"))[1]) == 1


@pytest.mark.slow
async def test_another_sessions_tool_port_wants_its_token(zygote_host: Host, project: Path, tmp_path: Path) -> None:
    """Without a network of its own a session can connect to another's port."""
    await reach_without_token(host=zygote_host, sandbox=False, working_dir=project, images_dir=tmp_path / "images")


@pytest.mark.slow
async def test_what_a_cell_plants_beside_the_program_is_not_imported_by_a_server(
    agent: CodeExecutor, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program runs in its project, as usual, and so does the session: the current directory is the workspace."""
    monkeypatch.chdir(project)
    given = StdioServer(sys.executable, ("-m", "mcp_server_time", "--local-timezone", "UTC"))
    ServerRegistry().register("time", given, "", str(project / "mcptools"))
    planted = "write('mcp_server_time.py', \"open('ran', 'w')\"); "
    call = "run('time', 'get_current_time', arguments={'timezone': 'UTC'})"
    seen = await streamed(agent, f"{planted}print({call})", accept)
    assert (project / "mcp_server_time.py").exists()
    assert not (project / "ran").exists()
    assert seen.text.startswith("(200, None)")


@pytest.mark.slow
async def test_no_server_is_started_to_decide_about_a_call(attacked_host: Host, project: Path, tmp_path: Path) -> None:
    """Not for rules that mention hints either: `deny` means that nothing happens on the host."""
    started = tmp_path / "started"
    ServerRegistry().register("noisy", StdioServer("touch", (str(started),)), "", str(project / "mcptools"))
    rules = Rules((Rule("allow", read_only=True), Rule("ask", tool="asked", destructive=True)), default="deny")
    options: dict[str, Any] = {"host": attacked_host, "working_dir": project, "images_dir": tmp_path / "images"}
    async with CodeExecutor(rules=rules, **options) as executor:
        await armed(executor)
        got, asked = await attack(executor, "[run('noisy', tool) for tool in ('echo', 'asked')]")
    assert [message for _, message in got] == [
        "Approval request for noisy.echo was not accepted: denied by the rule: default",
        "Approval request for noisy.asked rejected",
    ]
    assert len(asked) == 1
    assert not started.exists()
