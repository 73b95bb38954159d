"""Branches with files of their own: what they have, what becomes of it, and what is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from cellblock import (
    CheckpointError,
    Filesystem,
    Host,
    InvalidInputError,
    Network,
    Policy,
    Rolling,
    Session,
    SnapshotError,
)
from cellblock.host.checkpoints import branches as branching
from cellblock.host.snapshots import SnapshotLimits
from cellblock.host.snapshots.journal import Journal
from cellblock.host.snapshots.trash import Entry
from cells import value
from processes import eventually


@pytest.fixture(params=[*(pytest.param(kind, marks=pytest.mark.slow) for kind in ("none", "landlock")), "native"])
def any_host(request: pytest.FixtureRequest, zygote_host: Host, native_host: Host, landlock_host: Host) -> Host:
    """A warm host of each kind of isolation."""
    return {"none": zygote_host, "native": native_host, "landlock": landlock_host}[request.param]


@asynccontextmanager
async def made(host: Host, workspace: Path, recovery: Rolling | Literal["none"] = "none") -> AsyncIterator[Session]:
    async with host.session(working_dir=workspace, images_dir=workspace.parent / "images", recovery=recovery) as session:
        yield session
        for checkpoint in session.checkpoints():
            await checkpoint.drop()
    assert os.listdir(branching._records()) == []
    assert not [name for name in os.listdir(workspace) if name.startswith(".cellblock")]


async def close(*branches: Session) -> None:
    await asyncio.gather(*(branch.close() for branch in branches))


async def test_what_snapshots_exclude_in_an_adopted_branch_is_in_the_trash(native_host: Host, workspace: Path) -> None:
    async with made(native_host, workspace) as session:
        (branch,) = await session.fork()
        code = "import os\nfor name in ('.git', 'r/.git', '.venv'):\n    os.makedirs(name); open(f'{name}/file', 'w').close()"
        assert (await branch.execute(code)).ok
        changes = await session.adopt(branch)
        (entry,) = await session.trash()
        assert sorted(changes.kept) == [".git", ".venv", "r/.git"]
        assert (entry.id, [file.path for file in entry.files]) == (changes.trash, [".git/file", ".venv/file", "r/.git/file"])
        await session.restore_trash("r/.git")
        assert (workspace / "r" / ".git" / "file").exists()


async def test_a_branch_stays_open_if_the_trash_cannot_take_what_snapshots_exclude(
    native_host: Host, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with made(native_host, workspace) as session:
        (branch,) = await session.fork()
        await branch.execute("import os; os.mkdir('.venv'); open('.venv/file', 'w').close()")
        with monkeypatch.context() as patched:
            patched.setattr(Entry, "take", lambda *_: False)
            with pytest.raises(SnapshotError, match="could not be moved to the trash"):
                await session.adopt(branch)
        assert len([*workspace.glob(".cellblock-branch-*/.venv/file")]) == 1
        await branch.close()


async def test_each_branch_has_its_files_and_the_best_ones_are_adopted(any_host: Host, workspace: Path) -> None:
    async with made(any_host, workspace) as session:
        await session.execute("import os; open('a', 'w').write('0'); os.mkdir('below'); open('below/b', 'w').write('0')")
        branches = await session.fork(2)
        for number, branch in enumerate(branches, 1):
            assert branch.workspace != str(workspace)
            code = f"!echo shell > new-{number}\nopen('a', 'w').write('{number}')\nos.remove('below/b')\nos.chdir('below')"
            assert (await branch.execute(code)).ok
        assert await value(session, "open('a').read(), os.path.exists('below/b')") == ("0", True)
        for number, branch in enumerate(branches, 1):
            assert await value(branch, "sorted(os.listdir())") == ["a", "below", f"new-{number}"]
            assert await value(branch, "open('a').read(), os.getcwd()") == (str(number), branch.workspace)
        changes = await session.adopt(branches[1])
        assert (changes.written, changes.removed, changes.kept) == (("a", "new-2"), ("below/b",), ())
        assert await value(session, "open('a').read(), os.getcwd()") == ("2", str(workspace))
        await close(*branches)


@pytest.mark.slow
async def test_a_branch_goes_on_in_its_files_whatever_becomes_of_its_kernel(any_host: Host, workspace: Path) -> None:
    async with made(any_host, workspace, Rolling(after=0.001)) as session:
        await session.execute("import os; open('a', 'w').write('0')")
        (branch,) = await session.fork()
        look = "__import__('os').getcwd(), open('a', 'a').write('1')"
        await branch.execute("os._exit(1)")
        assert await value(branch, look) == (branch.workspace, 1)
        await branch.reset()
        assert await value(branch, look) == (branch.workspace, 1)
        assert (workspace / "a").read_text() == "0"
        (inner,) = await branch.fork()
        await branch.close()
        assert await value(inner, f"open('a').read(), open({str(workspace / 'a')!r}).read()") == ("011", "0")
        await session.adopt(inner)
        assert (workspace / "a").read_text() == "011"


async def test_files_are_shared_if_they_are_to_be(zygote_host: Host, workspace: Path) -> None:
    async with made(zygote_host, workspace) as session:
        (shared,) = await session.fork(files="shared")
        assert shared.workspace == str(workspace)
        (own,) = await session.fork(files="copy")
        (sharing,) = await own.fork(files="shared")
        checkpoint = await own.checkpoint()
        await own.execute("open('a', 'w').write('1')")
        await own.close()
        assert await value(sharing, "open('a').read()") == "1"
        await close(shared, sharing)
        with pytest.raises(CheckpointError, match="its files were removed"):
            await zygote_host.session(start_from=checkpoint).start()
        await session.restore(checkpoint)
        assert await value(session, "__import__('os').getcwd()") == str(workspace)
        await checkpoint.drop()


async def test_without_a_directory_of_its_own_a_session_shares_its_files(zygote_host: Host, workspace: Path) -> None:
    async with made(zygote_host, workspace) as session, zygote_host.session(images_dir=workspace, recovery="none") as other:
        (branch,) = await other.fork()
        assert branch.workspace == other.workspace
        with pytest.raises(InvalidInputError, match="working_dir"):
            await other.fork(files="copy")
        with pytest.raises(InvalidInputError, match="files"):
            await other.fork(files="all")  # type: ignore[call-overload]
        (own,) = await session.fork()
        with pytest.raises(InvalidInputError, match="working_dir"):
            await other.adopt(own)
        await close(branch, own)


@pytest.mark.slow
async def test_branches_stay_where_their_session_is_if_the_program_goes_elsewhere(
    any_host: Host, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace)
    async with any_host.session(recovery="none") as session, made(any_host, workspace) as other:
        monkeypatch.chdir(tmp_path)
        (shared,), (own,) = await session.fork(), await other.fork()
        assert await value(shared, "__import__('os').getcwd()") == shared.workspace == str(workspace)
        checkpoint = await session.checkpoint()
        async with any_host.session(start_from=checkpoint, kernel_env={"A": "1"}) as later:
            assert later.workspace == str(workspace)
        await checkpoint.drop()
        await other.adopt(own)
        await close(shared, own)


async def test_what_cannot_be_copied_whole_is_not_copied(zygote_host: Host, workspace: Path) -> None:
    async with made(zygote_host, workspace) as session:
        (branch,) = await session.fork()
        for each in (session, branch):
            snapshots = each._checkpoints.files._made
            assert snapshots is not None
            snapshots.limits = SnapshotLimits(max_total_bytes=10)
            await each.execute("open('large', 'w').write('more than ten bytes')")
        with pytest.raises(SnapshotError, match=r"too large or too many: large"):
            await session.fork()
        with pytest.raises(SnapshotError, match=r"restored from the branch.*large"):
            await session.adopt(branch)
        assert await value(branch, "open('large').read()") == "more than ten bytes"
        await close(*await session.fork(files="shared"), branch)


async def test_what_a_session_may_not_read_is_not_copied_for_its_branches(native_host: Host, workspace: Path) -> None:
    """However it is named: relative, absolute, or by a link."""
    for name in ("one", "two", "three"):
        (workspace / name).mkdir()
        (workspace / name / "secret").write_text("secret")
    (workspace / "link").symlink_to("three")
    policy = Policy(filesystem=Filesystem(deny_read=("one", str(workspace / "two"), "link")))
    async with native_host.session(policy=policy, working_dir=workspace, images_dir=workspace.parent) as session:
        (branch,) = await session.fork()
        look = "[name for name in ('one', 'two', 'three', 'link') if __import__('os').path.exists(f'{name}/secret')]"
        assert await value(session, look) == await value(branch, look) == []
        await branch.close()


async def test_code_cannot_have_something_else_removed(native_host: Host, workspace: Path) -> None:
    (workspace / "kept").mkdir()
    (workspace / "kept" / "file").write_text("1")
    async with native_host.session(working_dir=workspace, images_dir=workspace.parent, recovery="none") as session:
        (branch,) = await session.fork()
        await session.execute(f"import os; os.rename({branch.workspace!r}, 'moved'); os.rename('kept', {branch.workspace!r})")
        await branch.close()
        assert (Path(branch.workspace) / "file").read_text() == "1"


KILLED = """
import asyncio, os, sys
from cellblock import Host

async def main():
    async with Host(launch="spawn", isolate="none") as host:
        session = host.session(working_dir=sys.argv[1], images_dir=sys.argv[1] + "/images", recovery="none")
        await session.start()
        await session.fork(2)
        os.kill(os.getpid(), 9)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_what_a_killed_program_has_left_is_removed_by_the_next(workspace: Path) -> None:
    (workspace / "a").write_text("1")
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, str(workspace), stderr=subprocess.PIPE)
    _, said = await process.communicate()
    assert process.returncode == -signal.SIGKILL, said
    assert len(os.listdir(branching._records())) == 2
    restores = branching._records().parent / "restores"
    (restores / f"{Journal(restores, next(workspace.glob('.cell*')))._path.stem}.lock").touch()  # killed in the middle
    branching.remove_branches_of_the_dead()
    assert os.listdir(branching._records()) == os.listdir(restores) == []
    assert os.listdir(workspace) == ["a"]


_CONNECT = """
import os, socket
def connect(name, port):
    with socket.create_connection(("127.0.0.1", int(port))) as proxy:
        proxy.sendall(f"CONNECT {name}:443 HTTP/1.1\\r\\nHost: {name}:443\\r\\n\\r\\n".encode())
        return proxy.recv(100)[:12].decode()
"""


async def connect(session: Session, name: str) -> str:
    result = await session.execute(f"{_CONNECT}\nconnect({name!r}, os.environ['CELLBLOCK_EGRESS_PORT'])")
    assert result.return_value is not None, result
    return result.return_value[-4:-1]


async def test_branches_ask_about_hosts_and_share_the_rules(native_host: Host, workspace: Path) -> None:
    asked: list[str] = []

    async def on_host(host: str, port: int) -> bool:
        asked.append(host)
        return False

    asking = Policy(network=Network(ask=True))
    async with native_host.session(working_dir=workspace, policy=asking, on_host=on_host, recovery="none") as session:
        await connect(session, "before.test")
        (branch,) = await session.fork(1)
        await connect(branch, "of-branch.test")
        await connect(session, "beside-branch.test")
        (twig,) = await branch.fork(1)
        await connect(twig, "of-twig.test")
        assert asked == ["before.test", "of-branch.test", "beside-branch.test", "of-twig.test"]
        changed = await branch.change_network(allow=["allowed.invalid"], deny=["denied.test"])
        for one in (session, branch, twig):
            assert one.network == replace(changed, closed=0)
            assert await connect(one, "denied.test") == "403"
            assert await connect(one, "allowed.invalid") == "502"  # allowed, and unknown
        assert len(asked) == 4
        await session.reset()
        assert await connect(session, "denied.test") == "403"
        await session.close()
        assert await connect(twig, "denied.test") == "403"
        await connect(twig, "after.test")
        assert asked[4:] == ["after.test"]
        await asyncio.gather(branch.close(), twig.close())


@pytest.mark.parametrize(
    "how", ["fork", *(pytest.param(how, marks=pytest.mark.slow) for how in ("undo of a branch", "adopt"))]
)
async def test_a_question_is_neither_lost_nor_asked_twice(native_host: Host, workspace: Path, how: str) -> None:
    asked: list[tuple[str, asyncio.Future[bool]]] = []

    async def on_host(host: str, port: int) -> bool:
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        asked.append((host, answer))
        return await answer

    asking = Policy(network=Network(ask=True))
    later = f"""{_CONNECT}
import threading
answers = []
port = os.environ["CELLBLOCK_EGRESS_PORT"]
threading.Thread(target=lambda: answers.append(connect("asked.invalid", port)), daemon=True).start()
"""
    async with native_host.session(working_dir=workspace, policy=asking, on_host=on_host) as session:
        (branch,) = branches = await session.fork(1)
        await branch.execute("1")
        await session.execute(later)
        await eventually(lambda: bool(asked))
        match how:
            case "fork":
                branches += await branch.fork(1)
                await branches[1].execute("1")
            case "undo of a branch":
                await branch.undo()
            case _:
                (other,) = await branch.fork(1)
                await branch.adopt(other)
        assert len(asked) == 1
        assert not asked[0][1].done()
        asked[0][1].set_result(True)
        waits = "import time\nwhile not answers: time.sleep(0.01)\nanswers"
        assert (await session.execute(waits)).return_value == "['HTTP/1.1 502']"
        assert len(asked) == 1
        await asyncio.gather(*(one.close() for one in branches))
