"""E2B's own SDKs, for Python and JavaScript, use `cellblock serve --e2b`."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemons import own_daemon
from gateways import Gateway, own_gateway

pytestmark = pytest.mark.clients

ROOT = Path(__file__).parents[2]
MODULES = ROOT / "build" / "clients" / "node_modules"
"""Where .ci/install puts the SDK for JavaScript, with a Node that is new enough for it."""

DOCUMENT = (ROOT / "docs" / "e2b.md").read_text()

PYTHON = """
import asyncio, io, os, threading, time
from e2b import (
    CommandExitException, FileNotFoundException, InvalidArgumentException, NotFoundException, PtySize, SandboxException,
    TimeoutException)
from e2b_code_interpreter import AsyncSandbox, Sandbox

def fails(kind, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except kind as error:
        return str(error)
    raise AssertionError("it did not fail")

sandbox = Sandbox.create()
assert sandbox.is_running()

# Code
seen = []
code = "import sys\\nprint('a')\\nprint('b', file=sys.stderr)\\n'c'"
result = sandbox.run_code(code, on_stdout=seen.append, on_stderr=seen.append)
assert (result.text, result.logs.stdout, result.logs.stderr) == ("c", ["a\\n"], ["b\\n"])
assert [one.line for one in seen] == ["a\\n", "b\\n"]
assert result.execution_count
assert sandbox.run_code("import os; os.environ['A']", envs={"A": "1"}).text == "1"
assert sandbox.run_code("os.environ.get('A', 'gone')").text == "gone"
assert sandbox.run_code("echo $A", language="bash", envs={"A": "1"}).logs.stdout == ["1\\n"]
error = sandbox.run_code("1 / 0").error
assert (error.name, error.value) == ("ZeroDivisionError", "division by zero")
frame = sandbox.run_code("import pandas as pd\\npd.DataFrame({'a': [1, None]})").results[0]
assert frame.data == {"a": [1.0, None]} and frame.html
chart = sandbox.run_code("import matplotlib.pyplot as plt\\nplt.plot([1, 2], [3, 4])\\nplt.title('T')\\nplt.show()").results[0]
assert chart.png and chart.chart.type.value == "line" and chart.chart.title == "T", chart.chart
assert fails(TimeoutException, sandbox.run_code, "import time\\ntime.sleep(60)", timeout=1)
assert sandbox.run_code("1 + 1", timeout=20).text == "2"
assert "no Jupyter kernel for 'r'" in fails(SandboxException, sandbox.run_code, "1", language="r")

# Contexts
context = sandbox.create_code_context(cwd="/tmp")
assert context.id in [one.id for one in sandbox.list_code_contexts()]
assert sandbox.run_code("import os; x = 1; os.getcwd()", context=context).text == "/tmp"
sandbox.restart_code_context(context)
assert sandbox.run_code("x", context=context).error.name == "NameError"
sandbox.remove_code_context(context)
assert fails(NotFoundException, sandbox.run_code, "x", context=context)

# Files
files = sandbox.files
assert files.write("one.txt", "text").path == "/home/user/one.txt"
assert [one.path for one in files.write_files([{"path": "d/two", "data": b"2"}, {"path": "three", "data": "3"}])] == [
    "/home/user/d/two", "/home/user/three"]
files.write("stream.bin", io.BytesIO(bytes(9_000_000)))
files.write("packed.txt", "packed" * 1000, gzip=True)
assert files.read("/home/user/one.txt") == "text" and files.read("d/two", format="bytes") == b"2"
assert sum(map(len, files.read("stream.bin", format="stream"))) == 9_000_000
assert sandbox.run_code("open('/home/user/packed.txt').read()[:6], open('three').read()").text == "('packed', '3')"
assert {"one.txt", "d"} <= {one.name for one in files.list("/home/user")}
assert "/home/user/d/two" in {one.path for one in files.list(".", depth=2)}
about = files.get_info("one.txt")
assert (about.name, about.size, about.type.value, about.owner) == ("one.txt", 4, "file", "user")
assert files.exists("one.txt") and not files.exists("nowhere/at/all")
files.remove("one.txt")
assert fails(FileNotFoundException, files.read, "one.txt")
assert fails(FileNotFoundException, files.read, "/etc/no-such-file")
assert files.write("/tmp/far.txt", "far").path == "/tmp/far.txt" and files.read("/tmp/far.txt") == "far"
watch = files.watch_dir("/home/user", recursive=True)
files.write("watched/one", "1")
found = []
for _ in range(600):
    found += [(one.name, one.type.value) for one in watch.get_new_events()]
    if ("watched/one", "create") in found:
        break
    time.sleep(0.05)
assert ("watched", "create") in found and ("watched/one", "create") in found, found
watch.stop()
assert fails(FileNotFoundException, files.watch_dir, "nowhere")
assert "one user" in fails(SandboxException, files.write, "x", "y", user="root")

assert files.make_dir("made/below") and not files.make_dir("made/below")
assert files.rename("three", "made/three").path == "/home/user/made/three"

# Programs
run = sandbox.commands.run
result = run("echo out; echo err >&2; pwd; echo $A", envs={"A": "1"})
assert (result.stdout, result.stderr, result.exit_code) == ("out\\n/home/user\\n1\\n", "err\\n", 0), result
assert run("cat three; pwd", cwd="made").stdout == "3/home/user/made\\n"
try:
    run("echo so far; exit 3")
except CommandExitException as ended:
    assert (ended.exit_code, ended.stdout) == (3, "so far\\n")
else:
    raise AssertionError("it did not fail")
assert fails(TimeoutException, run, "sleep 60", timeout=1)
cat = run("cat", background=True, stdin=True)
sandbox.commands.send_stdin(cat.pid, "input\\n")
sandbox.commands.close_stdin(cat.pid)
assert cat.wait().stdout == "input\\n"
server = run("echo up; sleep 60", background=True)
assert server.pid in [one.pid for one in sandbox.commands.list()]
server.disconnect()
again = sandbox.commands.connect(server.pid)
assert sandbox.commands.kill(server.pid)
try:
    again.wait()
except CommandExitException as ended:
    assert ended.exit_code == -1
assert not sandbox.commands.kill(server.pid)
terminal = sandbox.pty.create(size=PtySize(rows=24, cols=80))
sandbox.pty.resize(terminal.pid, PtySize(rows=30, cols=100))
sandbox.pty.send_stdin(terminal.pid, b"stty size; exit\\n")
shown = []
terminal.wait(on_pty=shown.append)
assert b"30 100" in b"".join(map(bytes, shown)), shown
assert "one user" in fails(SandboxException, run, "true", user="root")

async def both():
    sandbox = await AsyncSandbox.create()
    other = await sandbox.create_code_context()
    first, second = await asyncio.gather(
        sandbox.run_code("import time; time.sleep(0.3); y = 1; y"), sandbox.run_code("y = 2; y", context=other))
    assert (first.text, second.text) == ("1", "2")
    await sandbox.files.write("async.txt", "async")
    assert await sandbox.files.read("async.txt") == "async"
    try:
        await sandbox.run_code("import time; time.sleep(60)", timeout=1)
    except TimeoutException:
        pass
    assert (await sandbox.run_code("y")).text == "1"
    lines = []
    done = await sandbox.commands.run("echo a; echo b", on_stdout=lines.append)
    assert (done.stdout, "".join(lines)) == ("a\\nb\\n", "a\\nb\\n")
    code, program = await asyncio.gather(sandbox.run_code("time.sleep(0.5); 1"), sandbox.commands.run("echo beside"))
    assert (code.text, program.stdout) == ("1", "beside\\n")
    assert await sandbox.kill()

asyncio.run(both())
assert sandbox.kill()
print("passed", flush=True)
os._exit(0)  # threads of the SDK sometimes abort an interpreter that ends
"""

JAVASCRIPT = """
const assert = require('node:assert/strict')
const { Sandbox } = require('@e2b/code-interpreter')

async function main() {
  const sandbox = await Sandbox.create()
  assert(await sandbox.isRunning())
  const lines = []
  const onStdout = (message) => lines.push(message.line)
  let result = await sandbox.runCode("import os\\nprint('a')\\nos.environ['A']", { envs: { A: '1' }, onStdout })
  assert.deepEqual([result.text, lines, result.logs.stdout], ['1', ['a\\n'], ['a\\n']])
  result = await sandbox.runCode('1 / 0')
  assert.equal(result.error.name, 'ZeroDivisionError')
  result = await sandbox.runCode("import pandas as pd\\npd.DataFrame({'a': [1, float('nan')]})")
  assert.deepEqual(result.results[0].data, { a: [1, null] })
  await assert.rejects(sandbox.runCode('import time; time.sleep(60)', { timeoutMs: 1000 }), { name: 'TimeoutError' })
  assert.equal((await sandbox.runCode('1 + 1', { timeoutMs: 20000 })).text, '2')

  const context = await sandbox.createCodeContext({ cwd: '/tmp' })
  assert.equal((await sandbox.runCode('import os; x = 1; os.getcwd()', { context })).text, '/tmp')
  assert((await sandbox.listCodeContexts()).some((one) => one.id === context.id))
  await sandbox.restartCodeContext(context)
  assert.equal((await sandbox.runCode('x', { context })).error.name, 'NameError')
  await sandbox.removeCodeContext(context)

  assert.equal((await sandbox.files.write('js.txt', 'from js')).path, '/home/user/js.txt')
  await sandbox.files.write([{ path: 'd/one', data: '1' }, { path: 'two', data: new Blob(['22']) }])
  assert.equal(await sandbox.files.read('js.txt'), 'from js')
  assert.equal((await sandbox.files.read('two', { format: 'bytes' })).length, 2)
  assert.equal((await sandbox.runCode("open('/home/user/d/one').read()")).text, '1')
  assert((await sandbox.files.list('.')).some((one) => one.name === 'js.txt'))
  assert.equal((await sandbox.files.getInfo('js.txt')).size, 7)
  await sandbox.files.remove('js.txt')
  assert.equal(await sandbox.files.exists('js.txt'), false)
  await assert.rejects(sandbox.files.read('/etc/no-such-file'), /does not exist|no such file/i)
  assert(await sandbox.files.makeDir('js/below'))
  assert.equal(await sandbox.files.makeDir('js/below'), false)
  assert.equal((await sandbox.files.rename('two', 'js/two')).path, '/home/user/js/two')

  const seen = []
  const done = await sandbox.commands.run('echo out; pwd; echo $A', { envs: { A: '1' }, onStdout: (text) => seen.push(text) })
  assert.deepEqual([done.stdout, seen.join(''), done.exitCode], ['out\\n/home/user\\n1\\n', done.stdout, 0])
  await assert.rejects(sandbox.commands.run('exit 3'), { name: 'CommandExitError', exitCode: 3 })
  await assert.rejects(sandbox.commands.run('sleep 60', { timeoutMs: 1000 }), { name: 'TimeoutError' })
  const cat = await sandbox.commands.run('cat', { background: true, stdin: true })
  await sandbox.commands.sendStdin(cat.pid, 'input\\n')
  await sandbox.commands.closeStdin(cat.pid)
  assert.equal((await cat.wait()).stdout, 'input\\n')
  const server = await sandbox.commands.run('sleep 60', { background: true })
  assert((await sandbox.commands.list()).some((one) => one.pid === server.pid))
  assert(await server.kill())
  await assert.rejects(server.wait(), { name: 'CommandExitError' })
  assert.equal(await sandbox.commands.kill(server.pid), false)
  let shown = ''
  const terminal = await sandbox.pty.create({ cols: 80, rows: 24, onData: (data) => (shown += Buffer.from(data).toString()) })
  await sandbox.pty.sendInput(terminal.pid, Buffer.from('stty size; exit\\n'))
  await terminal.wait()
  assert.match(shown, /24 80/)
  console.log('passed')
}
main().catch((error) => { console.error(error); process.exit(1) })
"""

PORT_PYTHON = """
import sys, time, urllib.request
from e2b_code_interpreter import Sandbox
sandbox = Sandbox.create()
sandbox.files.write("index.html", "a page")
port = int(sys.argv[1])
sandbox.commands.run(f"python3 -m http.server {port}", background=True)
for _ in range(600):
    try:
        print(urllib.request.urlopen(f"http://{sandbox.get_host(port)}/", timeout=30).read().decode())
        break
    except urllib.error.HTTPError as error:
        assert error.code == 502, error.read()
        time.sleep(0.1)
"""

PORT_JAVASCRIPT = """
import { Sandbox } from '@e2b/code-interpreter'

const sandbox = await Sandbox.create()
const answered = await fetch(`http://${sandbox.getHost(PORT)}/`)
console.log(await answered.text())
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A server of these tests' own, at any port."""
    with own_daemon(tmp_path_factory.mktemp("daemon")), own_gateway("e2b") as made:
        yield made


def run(*command: str | Path, url: str = "") -> str:
    """Run a program that uses an SDK; return what it prints."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("E2B_")}
    variables |= {"E2B_DEBUG": "true", "NODE_PATH": str(MODULES)} | ({"E2B_SANDBOX_URL": url} if url else {})
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_python(server: Gateway) -> None:
    assert run(sys.executable, "-c", PYTHON, url=server.url) == "passed\n"


def test_javascript(server: Gateway) -> None:
    assert run(MODULES / ".bin" / "node", "-e", JAVASCRIPT, url=server.url) == "passed\n"


def test_the_examples_of_the_document(server: Gateway) -> None:
    python, shown = re.findall(r"```(?:py|text)\n(.*?)```", DOCUMENT, re.DOTALL)[:2]
    assert run(sys.executable, "-c", python, url=server.url) == shown
    javascript = re.findall(r"```js\n(.*?)```", DOCUMENT, re.DOTALL)[0]
    place = MODULES.parent / "e2b-example.mjs"  # where it finds the SDK
    place.write_text(javascript)
    try:
        assert run(MODULES / ".bin" / "node", place, url=server.url) == "42\n"
    finally:
        place.unlink()


@pytest.mark.usefixtures("server")
def test_the_host_of_a_port_leads_to_a_server_of_the_sandbox(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with own_gateway("e2b", publish=[port], session_options={"working_dir": str(tmp_path)}) as made:
        assert run(sys.executable, "-c", PORT_PYTHON, str(port), url=made.url) == "a page\n"
        place = MODULES.parent / "e2b-port.mjs"  # where it finds the SDK
        place.write_text(PORT_JAVASCRIPT.replace("PORT", str(port)))
        try:
            assert run(MODULES / ".bin" / "node", place, url=made.url) == "a page\n"
        finally:
            place.unlink()


def test_at_the_ports_that_the_sdks_know_they_need_no_address(server: Gateway, tmp_path: Path) -> None:
    for port in (49999, 49983):
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"something listens at port {port}")
    with own_gateway("e2b", port=None, session_options={"working_dir": str(tmp_path)}):
        program = "s = Sandbox.create()\ns.files.write('a', 'b')\nprint(s.run_code('6 * 7').text)"
        program = f"from e2b_code_interpreter import Sandbox\n{program}"
        assert run(sys.executable, "-c", program) == "42\n"
    assert (tmp_path / "a").read_text() == "b"
