"""A question about a host lives as long as the code that waits for its answer; nothing is dialled for what came after."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from cellblock import ApprovalRequest, CodeExecutor, Host
from cellblock.walls.proxy.proxy import EgressProxy
from processes import eventually
from suite import first_quick
from tool_sessions import recorded, reject, streamed

CONNECT, SOCKS = "CONNECT", "SOCKS5"

ASK = """
import os, socket, threading, time

def ask(kind, name):
    proxy = socket.create_connection(("127.0.0.1", int(os.environ["CELLBLOCK_EGRESS_PORT"])))
    if kind == "SOCKS5":
        proxy.sendall(b"\\5\\1\\0")
        assert proxy.recv(2) == b"\\5\\0"
        proxy.sendall(b"\\5\\1\\0\\3" + bytes([len(name)]) + name.encode() + (443).to_bytes(2, "big"))
    else:
        proxy.sendall(f"CONNECT {name}:443 HTTP/1.1\\r\\nHost: {name}:443\\r\\n\\r\\n".encode())
    return proxy

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.005)
"""


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that proxies look up, which is what they do before they dial. None is found."""
    names: list[str] = []

    async def resolve(name: str) -> list[str]:
        names.append(name)
        raise OSError(-2, "unknown")

    assert EgressProxy.__init__.__kwdefaults__ is not None
    monkeypatch.setitem(EgressProxy.__init__.__kwdefaults__, "resolve", resolve)
    return names


@pytest.fixture
async def asking(
    native_host: Host, tmp_path: Path, looked_up: list[str], nothing_left_behind: None
) -> AsyncIterator[CodeExecutor]:
    """A sandboxed executor whose policy asks about hosts."""
    place = tmp_path / "workspace"
    place.mkdir()
    policy = tmp_path / "policy.json"
    network = {"allowedDomains": [], "deniedDomains": [], "ask": True}
    policy.write_text(json.dumps({"filesystem": {"allowWrite": ["."]}, "network": network}))
    async with CodeExecutor(host=native_host, working_dir=place, sandbox_config=policy, images_dir=place) as executor:
        assert (await executor.execute(ASK)).ok
        yield executor


def touch(executor: CodeExecutor, name: str) -> None:
    """Let the code go on that waits for a file."""
    (Path(executor.session.workspace) / name).touch()


async def is_withdrawn(request: ApprovalRequest) -> None:
    """Wait until a request is withdrawn, then accept it all the same."""
    await eventually(lambda: request.state == "withdrawn")
    await request.accept()
    assert request.state == "withdrawn"


@pytest.mark.parametrize("kind", first_quick([CONNECT, SOCKS]))
async def test_a_client_that_hangs_up_takes_its_question_back(asking: CodeExecutor, looked_up: list[str], kind: str) -> None:
    async def decide(request: ApprovalRequest) -> None:
        touch(asking, "asked")
        await is_withdrawn(request)
        touch(asking, "withdrawn")

    before = recorded(1)
    code = f"proxy = ask({kind!r}, 'a.test'); proxy.send(b'early'); wait_for('asked'); proxy.close(); wait_for('withdrawn')"
    seen = await streamed(asking, code, decide)
    assert (seen.result.ok, len(seen.asked), looked_up, recorded(1)) == (True, 1, [], before)


@pytest.mark.parametrize("kind", first_quick([CONNECT, SOCKS]))
async def test_an_answer_just_after_a_client_has_hung_up_is_too_late(
    asking: CodeExecutor, looked_up: list[str], kind: str
) -> None:
    async def decide(request: ApprovalRequest) -> None:
        touch(asking, "asked")
        await eventually(lambda: (Path(asking.session.workspace) / "closed").exists())
        await request.accept()

    code = f"proxy = ask({kind!r}, 'a.test'); wait_for('asked'); proxy.shutdown(socket.SHUT_WR); open('closed', 'w').close()"
    seen = await streamed(asking, code, decide)
    assert (seen.result.ok, len(seen.asked)) == (True, 1)
    await eventually(lambda: not any(proxy._clients for proxy in asking.session._around.network._proxies))  # type: ignore[union-attr]
    assert looked_up == []


@pytest.mark.parametrize("kind", first_quick([CONNECT, SOCKS]))
async def test_a_cell_that_is_stopped_takes_its_questions_back_although_its_connection_stays(
    asking: CodeExecutor, looked_up: list[str], kind: str
) -> None:
    code = f"proxy = ask({kind!r}, 'a.test'); open('held', 'w').close(); wait_for('never')"
    async with aclosing(asking.stream(code)) as events:
        request = await anext(events)
        assert isinstance(request, ApprovalRequest)
        await eventually(lambda: (Path(asking.session.workspace) / "held").exists())
    await is_withdrawn(request)
    seen = await streamed(asking, "print(proxy.recv(100))")
    assert ("HTTP/1.1 403" if kind == CONNECT else "b'\\x05\\x02") in seen.text, seen.text
    assert (seen.asked, looked_up) == ([], [])


async def test_what_background_work_asks_waits_for_the_reader_of_the_next_cell(
    asking: CodeExecutor, looked_up: list[str]
) -> None:
    code = (
        "def later():\n    wait_for('idle')\n    answers.append(ask('CONNECT', 'a.test').recv(100))\n    open('answered', 'w')"
    )
    start = f"answers = []\n{code}\nthreading.Thread(target=later, daemon=True).start()"
    assert (await streamed(asking, start)).asked == []
    touch(asking, "idle")
    seen = await streamed(asking, "wait_for('answered'); print(answers)", reject)
    assert (len(seen.asked), "403" in seen.text, looked_up) == (1, True, [])


@pytest.mark.parametrize("how", first_quick(["reset", "restore", "undo", "close"]))
async def test_a_kernel_that_is_replaced_leaves_no_question(asking: CodeExecutor, looked_up: list[str], how: str) -> None:
    session = asking.session
    checkpoint = await session.checkpoint() if how in ("restore", "undo") else None
    request: list[ApprovalRequest] = []

    async def decide(one: ApprovalRequest) -> None:
        request.append(one)
        touch(asking, "asked")

    # The cell ends; its connection, and so its question, stays.
    assert (await streamed(asking, "proxy = ask('CONNECT', 'a.test'); wait_for('asked')", decide)).result.ok
    assert request[0].state == "pending"
    match how:
        case "restore":
            assert checkpoint is not None
            await session.restore(checkpoint)
        case "undo":
            await session.undo()
        case "reset":
            await asking.reset()
        case _:
            await session.close()
    await is_withdrawn(request[0])
    assert looked_up == []


async def test_a_host_that_is_allowed_from_now_on_is_a_line_of_the_network(asking: CodeExecutor, looked_up: list[str]) -> None:
    async def decide(request: ApprovalRequest) -> None:
        await request.accept(always="call")

    code = "print(ask('CONNECT', {name!r}).recv(12))"
    seen = await streamed(asking, code.format(name="a.test"), decide)
    assert (len(seen.asked), looked_up) == (1, ["a.test"])
    assert (asking.network.allow, asking.network.revision) == (("a.test:443",), 1)
    assert recorded(1)[0].tool == "change"
    (branch,) = await asking.fork(1)
    seen = await streamed(branch, code.format(name="a.test"), reject)
    assert (seen.asked, looked_up) == ([], ["a.test", "a.test"])
    seen = await streamed(branch, code.format(name="b.test"), decide)
    assert len(seen.asked) == 1
    await branch.stop()
    await asking.change_network(remove=["a.test:443"])
    assert asking.network.allow == ("b.test:443",)
    seen = await streamed(asking, code.format(name="a.test"), reject)
    assert (len(seen.asked), "403" in seen.text) == (1, True)
