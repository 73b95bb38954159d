"""What sessions, MCP servers and clients send is parsed in moments, also if it is made to take long."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect

from cellblock import CodeExecutor, Host
from cellblock.fronts.gateway.embedded import EmbeddedGateway
from cellblock.fronts.gateway.gateway_options import GatewayOptions
from tool_sessions import CALL, register, streamed

pytestmark = pytest.mark.slow

MOMENT = 0.2
"""Processor time that a turn of the loop may take here: four times the promise, as a busy processor is slower. Each of these
inputs took a second or more when it was parsed without limits."""


class Turns:
    """Measures the turns of a loop in processor time, which does not depend on what else the machine does.

    Attributes:
        longest: The longest, in seconds.
    """

    def __init__(self) -> None:
        self.longest = 0.0

    @contextmanager
    def measured(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Measure a loop of another thread."""
        on, last = True, math.inf

        def turn() -> None:
            nonlocal last
            now = time.thread_time()
            self.longest, last = max(self.longest, now - last), now
            if on:
                loop.call_soon(turn)

        # What earlier tests left is none of the loop's work.
        gc.collect()
        gc.freeze()
        loop.call_soon_threadsafe(turn)
        try:
            yield
        finally:
            on = False

    def check(self, *what: object) -> None:
        print(f"{self.longest:.3f}", *what)
        assert self.longest < MOMENT, what


MANY = "[" + "[1.25e-300]," * 150_000 + "1]"

SHOWN = {
    "JSON": f"display({{'application/json': {MANY!r}}}, raw=True)",
    "many kinds of JSON": "display({f'a/{n}+json': '[' + '[1],' * 9000 + '1]' for n in range(60)}, raw=True)",
    "many displays": "for n in range(100): display({'application/json': '[' + '[1],' * 9000 + '1]'}, raw=True)",
    "metadata": "for n in range(100): display({'text/plain': 'x'}, raw=True, metadata={'a': [0] * 15_000})",
    "a name without end": "class ASyntaxError(Exception): pass\nraise ASyntaxError(' (<ipython-input-' * 100_000)",
    "git": "print(' .git/' * 150_000 + '\\nRead-only file system' * 20_000)",
}


BODIES = {
    "values": b'{"options": {"a": ' + MANY.encode() + b"}}",
    "fields": json.dumps({str(number): 0 for number in range(15_000)}).encode(),
    "tags": json.dumps({"tags": {str(number): 0 for number in range(15_000)}}).encode(),
    "digits": b'{"options": {"a": [' + b",".join([b"9" * 4300] * 3000) + b"]}}",
    "another encoding": ('{"a": ["\u0122",' + "[]," * 400_000 + "[]]}").encode("utf-16"),
    "escapes": b'{"a": "' + b"\\n" * 7_000_000 + b'"}',
    "brackets": b"[" * 15_000_000,
    "digits of a number": b'{"a": 0.' + b"1" * 15_000_000 + b"}",
}


async def test_nothing_that_is_sent_holds_the_loop(tmp_path: Path) -> None:
    turns = Turns()
    async with Host() as host:
        gateway = EmbeddedGateway(host, GatewayOptions())
        await gateway.start("127.0.0.1", 0)
        try:
            # In a thread, as what the client parses takes longer.
            await asyncio.to_thread(send_all, f"127.0.0.1:{gateway.port}", gateway.token, turns, asyncio.get_running_loop())
        finally:
            await gateway.close()


def send_all(address: str, token: str, turns: Turns, loop: asyncio.AbstractEventLoop) -> None:
    """Send everything, one after the other, while another session runs cells."""
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=f"http://{address}", headers=headers, timeout=60) as client:
        kernel = client.post("/api/kernels", json={}).json()["id"]
        assert client.post("/sessions/bystander/execute", json={"code": "1"}).status_code == 200
        with turns.measured(loop):
            time.sleep(0.1)
            quiet = turns.longest
            for name, body in BODIES.items():
                for path in ("/sessions/load", "/sessions/bystander/execute"):
                    answer = client.post(path, content=body, headers={"content-type": "application/json"})
                    assert answer.status_code in (413, 422), name
                    turns.check(name, path, quiet)
            with connect(f"ws://{address}/api/kernels/{kernel}/channels?token={token}", max_size=None) as socket:
                for name, code in SHOWN.items():
                    socket.send(json.dumps(request(code)))
                    while json.loads(socket.recv(60))["header"]["msg_type"] != "execute_reply":
                        pass
                    turns.check(name, quiet)
            for name in ("a name without end", "git"):
                answer = client.post("/sessions/bystander/execute?format=model", json={"code": SHOWN[name]})
                assert answer.status_code == 200
                turns.check(name, quiet)
        assert client.post("/sessions/bystander/execute", json={"code": "1"}).json()["output"] == ""


def request(code: str) -> dict[str, object]:
    header = {
        "msg_id": str(time.monotonic_ns()),
        "msg_type": "execute_request",
        "session": "s",
        "username": "",
        "version": "5.3",
    }
    content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False, "stop_on_error": False}
    return {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}


ANSWERS = {
    "values": "'values', {'row': '[1.25e-300],', 'count': 1_000_000}",
    "quoted values": "'values', {'row': '[1.25e-300],', 'count': 500_000, 'quoted': True}",
    "text": "'huge', {'size': 30_000_000}",
    "a late id": "'huge', {'size': 30_000_000, 'id_last': True}",
    "brackets": "'raw', {'line': '[' * 4_000_000}",
    "digits": '\'raw\', {\'line\': \'{"jsonrpc":"2.0","id":ID,"result":{"content":[],"x":[\' + \'9\' * 4_000_000 + \']}}\'}',
    "escapes": '\'raw\', {\'line\': \'{"jsonrpc":"2.0","id":ID,"result":{"x":"\' + \'\\\\n\' * 2_000_000 + \'"}}\'}',
    "blank lines": "'blank', {}",
    "notices": "'notices', {}",
    "requests": "'asks', {}",
    "no end": "'endless', {}",
}
"""The arguments of the hostile server's calls."""

ASKED = {
    "objects": 'b\'{"server_name":"bad","tool":"echo","arguments":{"a":[\' + b\'[1.25e-300],\' * 300_000 + b\'1]}}\'',
    "brackets": "b'[' * 4_000_000",
    "digits": "b'[' + b'9' * 4_000_000 + b']'",
    "escapes": "b'{\"a\":\"' + b'\\\\n' * 2_000_000 + b'\"}'",
    "another encoding": "('{\"a\":[\\u0122' + '[],' * 400_000 + '[]]}').encode('utf-16')",
}
"""The bodies of requests to the tool port."""

POST = """
import http.client, os
def post(body):
    connection = http.client.HTTPConnection('127.0.0.1', int(os.environ['CELLBLOCK_TOOL_PORT']), timeout=30)
    headers = {'Content-Type': 'application/json', 'Authorization': 'Bearer ' + os.environ.get('CELLBLOCK_TOOL_TOKEN', '')}
    try:
        connection.request('POST', '/run', body, headers)
        return connection.getresponse().status
    except OSError as error:
        return str(error)
    finally:
        connection.close()
"""


async def test_no_server_and_no_tool_call_holds_the_loop(tmp_path: Path) -> None:
    register(tmp_path)
    turns = Turns()
    async with Host() as host, CodeExecutor(host=host, working_dir=tmp_path) as hostile:
        await streamed(hostile, CALL + POST + "import asyncio")
        with turns.measured(asyncio.get_running_loop()):
            await asyncio.sleep(0.1)
            quiet = turns.longest
            for name, call in ANSWERS.items():
                seen = await streamed(
                    hostile, f"try: await asyncio.wait_for(bad.run({call}), 3)\nexcept Exception as error: print('failed')"
                )
                assert seen.result.ok
                turns.check("answer", name, quiet)
            for name, body in ASKED.items():
                seen = await streamed(hostile, f"post({body})")
                assert seen.result.return_value in ("400", "413"), name
                turns.check("request", name, quiet)
