"""Attacks 32 to 34 where kernels are sandboxed: lies, floods and descriptors on the channel cost the session that sends them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from cellblock import Host, Session
from cellblock.wire.frames import VERSION
from cells import ok, value
from processes import descriptors, eventually
from suite import first_quick

from .conftest import arm

FRAME = """
import json, socket, time
def frame(header, size=None):
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(data) if size is None else size).to_bytes(4, 'big') + bytes(4) + data
channel = socket.socket(fileno=os.dup(3))
def send(data):
    channel.sendall(data)
    time.sleep(60)
"""

KILLED = {
    "garbage": "send(b'\\xff' * 4096)",
    "a forged ready": f"send(frame({{'type': 'ready', 'version': {VERSION}}}))",
    "a channel shut down": "channel.shutdown(socket.SHUT_RDWR); time.sleep(60)",
    "a pipe in its place": "os.dup2(os.pipe()[1], 3); channel.close(); time.sleep(60)",
    "a frame of 100 MB": "send(frame({'type': 'stream'}, 100 * 2**20))",
    "a header that is no JSON": "send(frame(b'{'))",
    "not a number": 'send(frame(b\'{"type":"reply","count":NaN}\'))',
    "deep nesting": "send(frame(b'[' * 30000 + b']' * 30000))",
    "an unknown frame": "send(frame({'type': 'approve', 'id': 1}))",
    "a closed channel": "os.close(3); channel.close(); time.sleep(60)",
}
"""Those after the first four fail where frames are decoded, whose own tests are quick, or as another one does."""


def passes_no_rights() -> bool:
    """Whether the system can be told to refuse descriptors on a socket."""
    one, other = socket.socketpair()
    with one, other:
        try:
            one.setsockopt(socket.SOL_SOCKET, 83, 0)
        except OSError:
            return False
    return True


@pytest.mark.parametrize("code", first_quick(KILLED.values(), 4), ids=KILLED)
async def test_a_session_that_breaks_its_channel_is_killed_and_no_other(jail: Session, cell: Session, code: str) -> None:
    await ok(cell, "kept = 1")
    result = await jail.execute(f"{FRAME}\n{code}", timeout=30)
    assert result.status == "died", result.text
    assert await value(jail, "6 * 7") == 42
    assert await value(cell, "kept") == 1


async def test_a_forged_reply_ends_the_senders_own_cell(jail: Session, cell: Session) -> None:
    """The kernel's own reply comes out of turn then, and it is killed for that."""
    await ok(cell, "kept = 1")
    forged = "{'type': 'reply', 'execution_count': 99, 'ename': None}"
    result = await jail.execute(f"{FRAME}\nchannel.sendall(frame({forged}))\nmine = 1", timeout=30)
    assert (result.status, result.execution_count) == ("success", 99)
    results = []

    async def killed() -> bool:
        results.append(await jail.execute("'mine' in globals()"))
        return results[-1].state_lost

    await eventually(killed)
    assert await value(jail, "'mine' in globals()") is False
    assert await value(cell, "kept") == 1


async def test_descriptors_sent_to_the_host_do_not_arrive(jail: Session) -> None:
    before = descriptors()
    code = f"""{FRAME}
import array
for _ in range(7):  # a byte each: one less than a frame begins with
    passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [os.open('/', os.O_PATH)] * 64))]
    assert answer(channel.sendmsg, [bytes(1)], passed) in (1, 'EPERM')
time.sleep(60)
"""
    result = await jail.execute(code, timeout=0.5)
    assert result.status == "timeout"
    assert await value(jail, "6 * 7") == 42
    opened = {number: what for number, what in descriptors().items() if number not in before}
    assert not [what for what in opened.values() if what.startswith("/")]


async def test_the_system_refuses_descriptors_that_are_sent_to_the_host(cell: Session) -> None:
    """The host would close them. It would wait for a connection that lingers, and so would all other sessions."""
    if not passes_no_rights():
        pytest.skip("Linux before 6.16 always takes them")
    code = f"""{FRAME}
import array
passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0]))]
answer(channel.sendmsg, [bytes(1)], passed)
"""
    assert await value(cell, code) == "EPERM"


async def test_connections_do_not_linger(cell: Session) -> None:
    code = """
import socket, struct
with socket.socket() as it:
    it.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 1000))
    lingers = call(NR['setsockopt'], it.fileno(), 2**32 + 1, 13, struct.pack('ii', 1, 1000), 8)
    found = lingers, it.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
found
"""
    assert await value(cell, code) == (0, bytes(8))


@pytest.mark.slow
async def test_a_process_that_says_it_is_a_copy_is_not_spared(jail: Session) -> None:
    """Copies of a kernel are not killed with what a cell has started. There are none that the host has not asked for."""
    code = """
import select, signal, socket, time
reader, writer = os.pipe()
if not os.fork():
    os.setsid()
    between = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.001)
    mine, given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    socket.send_fds(socket.socket(fileno=os.dup(4)), [b'{"op":"copied","number":7}'], [given.fileno()])
    signal.pause()
    os._exit(0)
os.close(writer)
ended = bool(select.select([reader], [], [], 30)[0])
os.close(reader)
os.wait()
ended
"""
    assert await value(jail, code) is True


async def test_the_channel_gives_nothing_but_the_hosts_frames(jail: Session) -> None:
    code = f"""{FRAME}
[
    answer(channel.recvmsg, 1, 1024, socket.MSG_DONTWAIT),
    channel.getpeername(),
    answer(channel.connect, '/tmp/x'),
    answer(channel.bind, '/tmp/x'),
    answer(channel.listen),
]
"""
    answers = await value(jail, code)
    assert answers[:2] == ["EAGAIN", ""]
    assert set(answers[2:]) <= {"EISCONN", "EINVAL", "ENOENT", None}


async def test_patches_of_the_worker_hurt_only_their_session(attacked_host: Host, jail: Session, tmp_path: Path) -> None:
    """Attack 46: the kernel that comes next is a fork of a process that has seen none of it."""
    code = """
import builtins, sys, IPython, cellblock.worker.shell as shells, cellblock.wire.frames as frames
builtins.len = lambda it: 0
sys.modules['json'] = None
get_ipython().events.register('pre_run_cell', lambda *_: 1 / 0)
get_ipython().run_cell_async = None
"""
    await jail.execute(code, timeout=5)
    place = tmp_path / "other"
    place.mkdir()
    async with attacked_host.session(working_dir=place, images_dir=tmp_path / "images") as other:
        assert await value(other, "import json; json.loads('3'), len([1, 2])") == (3, 2)
    assert await value(jail, "import json; json.loads('3'), len([1, 2])") == (3, 2)


async def test_sessions_do_not_share_luck(attacked_host: Host, tmp_path: Path) -> None:
    """Attack 47."""
    drawn: list[list[str]] = []
    for number in range(2):
        place = tmp_path / str(number)
        place.mkdir()
        async with attacked_host.session(working_dir=place, images_dir=tmp_path / "images") as session:
            code = """
import random, uuid, tempfile, secrets, numpy, multiprocessing, os
[random.random(), numpy.random.random(), numpy.random.default_rng().random(), str(uuid.uuid4()), str(uuid.uuid1()),
 os.path.basename(tempfile.mktemp()), secrets.token_hex(), multiprocessing.current_process().authkey.hex(), hash(object()) * 0 + os.urandom(8)[0] * 0]
"""
            drawn.append((await value(session, code))[:-1])
    for one, *others in zip(*drawn, strict=True):
        assert one not in others
    assert os.getpid()


@pytest.mark.slow
async def test_the_hosts_environment_and_memory_are_not_in_the_session(
    attacked_host: Host, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack 22: a secret that stands in the host's environment and memory is nowhere to be found.

    Of the host of this test, which is started with it; what is searched for is put together only in the session.
    """
    canary = "canary-" + os.urandom(8).hex()
    monkeypatch.setenv("CANARY", canary)
    held = [canary * 3]
    async with Host(isolate="native") as host, host.session(working_dir=workspace, images_dir=tmp_path / "images") as session:
        await arm(session)
        code = f"""
import gc, re
wanted = bytes.fromhex('{canary[7:-1].encode().hex()}')
hits = []
with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as memory:
    for line in maps:
        span, access, _, _, _, *name = line.split(None, 5)
        start, end = (int(bound, 16) for bound in span.split('-'))
        if 'r' not in access or (name and name[0].startswith('[v')):
            continue
        memory.seek(start)
        data = answer(memory.read, end - start)
        if isinstance(data, bytes):
            # What this very cell has read is found as well: it has the brackets of its own source around it.
            hits += [line for at in re.finditer(re.escape(bytes(reversed(bytes(reversed(wanted))))), data) if data[at.start() - 7:at.start()] == b'-yranac'[::-1]]
[len(hits), 'CANARY' in os.environ, 'CANARY' in read('/proc/self/environ'), read('/proc/self/environ')]
"""
        assert await value(session, code) == [0, False, False, "GLIBC_TUNABLES=glibc.malloc.hugetlb=1\0"]
    assert held
