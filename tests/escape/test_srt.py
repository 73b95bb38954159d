"""Attacks from inside a sandbox of srt, with the default policy."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from cellblock import Host, Policy, Session
from cellblock.walls.sandbox.policy import Resources
from cells import ok, value
from tool_sessions import register

from .conftest import arm
from .test_channel import FRAME, KILLED
from .test_tools import reach_without_token

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
async def neighbours(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Session, Session]]:
    """A session under srt with the attacker's tools, and another one with another workspace."""
    ours, theirs = (tmp_path_factory.mktemp(name) for name in ("ours", "theirs"))
    async with (
        Host(isolate="srt") as host,
        host.session(working_dir=ours, images_dir=ours / "images", recovery="none") as session,
        host.session(working_dir=theirs, images_dir=theirs / "images", recovery="none") as other,
    ):
        await arm(session)
        await ok(other, "import os; open('secret', 'w').write('x'); open(os.path.expanduser('~/secret'), 'w').write('x')")
        yield session, other


@pytest.fixture
def attacker(neighbours: tuple[Session, Session]) -> Session:
    """The session with the attacker's tools."""
    return neighbours[0]


async def test_no_setting_of_the_kernel_can_be_changed(attacker: Session) -> None:
    # What root may write there, without a capability, includes the program that the kernel runs on the host after a crash.
    code = """
def changeable():
    for top in ('/proc/sys', '/proc/fs', '/proc/irq', '/proc/bus', '/proc/acpi', '/proc/scsi'):
        for directory, _, names in os.walk(top):
            yield from (path for name in names if opens(path := f'{directory}/{name}'))
    yield from filter(opens, ('/proc/sysrq-trigger', '/proc/mtrr', '/proc/kmsg'))
def opens(path):
    held = answer(os.open, path, os.O_WRONLY)
    return isinstance(held, int) and os.close(held) is None
"""
    await ok(attacker, code)
    # Everybody may open this one, and only a capability that nobody has here may write to it.
    assert await value(attacker, "[path for path in changeable() if path != '/proc/sys/kernel/ns_last_pid']") == []
    code = "held = answer(os.open, '/proc/sys/kernel/ns_last_pid', os.O_WRONLY)\n"
    code += "said = answer(os.write, held, b'300') if isinstance(held, int) else held"
    await ok(attacker, code)
    assert await value(attacker, "[said, answer(os.close, held) if isinstance(held, int) else None][0]") in (
        "EPERM",
        "EROFS",
        "EACCES",
    )
    assert await value(attacker, "answer(os.open, '/proc/sys/kernel/core_pattern', os.O_WRONLY)") in ("EROFS", "EACCES")


async def test_nothing_is_seen_of_the_host_and_of_what_runs_the_sandbox(attacker: Session) -> None:
    # /proc is of the namespace around, where this process has another number than the one it knows itself by.
    await ok(attacker, "others = {name for name in os.listdir('/proc') if name.isdigit()} - {os.readlink('/proc/self')}")
    looks = ["read(f'/proc/{p}/environ')", "answer(os.open, f'/proc/{p}/mem', 2)", "answer(os.listdir, f'/proc/{p}/root/tmp')"]
    looks += ["answer(os.readlink, f'/proc/{p}/fd/0')", "answer(os.readlink, f'/proc/{p}/cwd')"]
    for look in looks:
        assert await value(attacker, f"{{{look} for p in others}}") <= {"EACCES", "ENOENT"}, look
    names = await value(attacker, "{read(f'/proc/{p}/cmdline').split(chr(0))[0] for p in others}")
    assert not any("pytest" in name for name in names)


async def test_the_host_is_not_among_the_processes_that_can_be_signalled(attacker: Session) -> None:
    assert await value(attacker, f"answer(os.kill, {os.getpid()}, 0)") == "ESRCH"
    assert await value(attacker, "end(lambda: os.kill(1, 9))") == "lives"


async def test_no_descriptor_leads_to_the_host_but_the_channel_and_the_output(attacker: Session) -> None:
    code = "[answer(os.readlink, f'/proc/self/fd/{number}').split(':')[0] for number in os.listdir('/proc/self/fd')]"
    found = await value(attacker, code)
    assert sorted(set(found)) == ["/dev/null", "ENOENT", "pipe", "socket"]
    assert found.count("pipe") == 2
    # The channel, where copies say that they exist, and both ends of what asyncio wakes its loop with.
    assert found.count("socket") == 4


async def test_the_workspace_and_home_of_another_session_are_not_there(neighbours: tuple[Session, Session]) -> None:
    attacker, other = neighbours
    places = await value(other, "[os.getcwd(), os.path.expanduser('~'), os.environ['TMPDIR']]")
    assert await value(attacker, f"[answer(os.listdir, path) for path in {places!r}]") == ["ENOENT"] * 3


async def test_what_srt_needs_around_it_cannot_be_changed(attacker: Session, tmp_path: Path) -> None:
    code = "place = os.path.dirname(os.environ['TMPDIR']); [write(f'{place}/{name}/new') for name in ('run', 'packages')]"
    assert await value(attacker, code) == ["EROFS"] * 2
    code = "[answer(os.rename, f'{place}/tmp', f'{place}/gone'), answer(os.rmdir, f'{place}/home')]"
    assert await value(attacker, code) == ["EBUSY"] * 2


async def test_the_proxy_wants_its_password(attacker: Session) -> None:
    code = """
import socket
with socket.create_connection(('127.0.0.1', 3128), 10) as proxy:
    proxy.sendall(b'CONNECT 127.0.0.1:22 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')
    answered = proxy.recv(100)
"""
    await ok(attacker, code)
    assert (await value(attacker, "answered")).startswith(b"HTTP/1.1 407")


@pytest.mark.parametrize("call", ["unshare", "mount", "setns", "bpf", "keyctl", "ptrace", "perf_event_open", "userfaultfd"])
async def test_system_calls_that_lead_out_are_refused(attacker: Session, call: str) -> None:
    assert await value(attacker, f"call(NR[{call!r}], 0, 0, 0, 0, 0)") in ("EPERM", "ENOSYS")


async def test_connections_do_not_linger(attacker: Session) -> None:
    """Whoever closes one last waits for it, and on Linux before 6.16 it can be sent to the host."""
    code = """
import socket, struct
with socket.socket() as it:
    it.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 1000))
    lingers = it.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
"""
    await ok(attacker, code)
    assert await value(attacker, "lingers") == bytes(8)


@pytest.fixture(scope="module")
async def jailed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Session]:
    """A session that may be lost, and may use little memory."""
    place = tmp_path_factory.mktemp("jailed")
    policy = replace(Policy(), resources=Resources(memory=256 * 2**20))
    async with (
        Host(isolate="srt", policy=policy) as host,
        host.session(working_dir=place, images_dir=place / "i", recovery="none") as session,
    ):
        yield session


@pytest.mark.parametrize("lie", ["garbage", "a frame of 100 MB", "deep nesting", "a forged ready", "a closed channel"])
async def test_a_lie_on_the_channel_costs_its_own_session(jailed: Session, attacker: Session, lie: str) -> None:
    await ok(attacker, "kept = 1")
    result = await jailed.execute(f"import os\n{FRAME}\n{KILLED[lie]}", timeout=30)
    assert result.status == "died", result.text
    assert await value(jailed, "6 * 7") == 42
    assert await value(attacker, "kept") == 1


async def test_a_flood_of_output_is_cut(jailed: Session) -> None:
    result = await jailed.execute("import os\nfor _ in range(300): os.write(1, b'x' * 2**16)\nprint('end')", timeout=60)
    assert (result.status, result.truncated) == ("success", True)
    assert result.output.endswith("xend\n")


async def test_the_memory_of_each_process_is_limited(jailed: Session) -> None:
    result = await jailed.execute("kept = [bytearray(2**20) for _ in range(1024)]", timeout=60)
    assert result.status in ("error", "died")
    assert await value(jailed, "6 * 7") == 42


async def test_a_tool_port_of_the_same_sandbox_wants_its_token(tmp_path: Path) -> None:
    """Sessions of one workspace share a sandbox, and so its loopback network."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    register(workspace, "bad")
    async with Host(isolate="srt") as host:
        await reach_without_token(host=host, working_dir=workspace, images_dir=tmp_path / "images")
