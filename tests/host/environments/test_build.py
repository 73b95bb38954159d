"""Environments are made once, shared, and found again without the network."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

import processes
from cellblock import Host, LaunchError
from cellblock.host.environments import build
from cellblock.host.environments.store import Store
from cells import ok, value
from full_disk import small_disk
from package_index import Index

from .conftest import Shop

pytestmark = pytest.mark.slow


async def start(host: Host, directory: Path, *packages: str) -> str:
    """Start a session with packages, and return where their module is."""
    async with host.session(working_dir=directory, images_dir=directory, packages=packages) as session:
        return str(await value(session, "import tiny_demo; tiny_demo.__file__"))


async def test_two_hosts_make_one_environment_at_once(shop: Shop, store: Store, tmp_path: Path) -> None:
    async with shop() as one, shop() as other:
        found = await asyncio.gather(*(start(host, tmp_path, "tiny-demo") for host in (one, other)))
    assert found == ["/dev/shm/.environment/site-packages/tiny_demo.py"] * 2
    assert len(os.listdir(f"{store.directory}/environments")) == 1
    assert os.listdir(f"{store.directory}/building") == []
    assert len(store.collect(0, 0.0)) == 1, "nobody uses it any more"


@pytest.mark.sampled(1)
async def test_an_interpreter_behind_a_link_gets_packages(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its path is none in a sandbox. The zygote that unpacks is another one, and starts before it is needed."""
    (tmp_path / "linked").symlink_to(sys.prefix)
    linked = str(tmp_path / "linked" / "bin" / Path(sys.executable).name)
    before: list[set[str]] = []
    unpack = build.Environments._unpack

    async def watched(environments: build.Environments, digest: str, name: str, target: build.Target) -> None:
        before.append({key.interpreter for key in host.kernels.launchers.in_use})
        await unpack(environments, digest, name, target)

    monkeypatch.setattr(build.Environments, "_unpack", watched)
    async with shop(python=linked) as host:
        assert await start(host, tmp_path, "tiny-demo") == "/dev/shm/.environment/site-packages/tiny_demo.py"
    assert before == [{sys.executable, linked}] * len(before) != []


async def test_what_is_known_needs_no_network(
    shop: Shop, upstream: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shop() as host:
        await start(host, tmp_path, "tiny-demo")
        asked = len(upstream.asked)
        await start(host, tmp_path, "tiny-demo")
        assert len(upstream.asked) == asked
    gone = upstream.url.replace(str(upstream.port), "9")
    async with shop(gone) as host:
        with pytest.raises(LaunchError, match="offline, and tiny-demo is not in the store"):
            await start(host, tmp_path, "tiny-demo")
    pages, upstream.pages = upstream.pages, {}
    async with shop() as host:
        await start(host, tmp_path, "tiny-demo")
        monkeypatch.setattr("cellblock.host.environments.store.FRESH", 0.0)
        with pytest.raises(LaunchError, match="No matching distribution found for tiny-demo"):
            await start(host, tmp_path, "tiny-demo")
        upstream.pages = pages
        await start(host, tmp_path, "tiny-demo")

        async def offline(*_: object) -> None:
            raise build._OfflineError("offline")

        monkeypatch.setattr(build.Environments, "_acquire", offline)
        await start(host, tmp_path, "tiny-demo")  # yesterday's answer is better than none


async def test_a_full_disk_is_an_error_that_says_where(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Store, "make_environment", full)
    async with shop() as host:
        with pytest.raises(LaunchError, match=r"cannot be stored in .*/environments: No space left on device; make room"):
            await start(host, tmp_path, "tiny-demo")
        monkeypatch.undo()


@pytest.mark.parametrize("text", ["#" * 4_000_000, secrets.token_hex(2_000_000)], ids=["unpacked", "archive"])
async def test_a_small_disk_takes_the_packages_once_it_is_larger(
    shop: Shop,
    text: str,
    upstream: Index,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    upstream.publish("tiny_demo", "2.0", {"tiny_demo_data.txt": text})
    with small_disk(home := tmp_path_factory.mktemp("small"), "1500k") as resize:
        monkeypatch.setenv("CELLBLOCK_HOME", str(home))
        async with shop() as host:
            with pytest.raises(LaunchError, match=r"cannot be stored in .*/environments: No space left on device; make room"):
                await start(host, tmp_path, "tiny-demo")
            assert os.listdir(home / "environments" / "building") == []
            resize("64m")
            await start(host, tmp_path, "tiny-demo")
            assert host.environments.store.verify() == []


KILLED = """
import asyncio, os, sys
from cellblock import Host
from cellblock.host.environments import build
from cellblock.host.environments.store import Store
build._find_uv = lambda: None
kind, name, when = {"Store": Store, "Environments": build.Environments}[sys.argv[1]], sys.argv[2], sys.argv[3]
whole = getattr(kind, name)
def ending(*arguments, **options):
    if when == "after":
        whole(*arguments, **options)
    print("here", flush=True)
    sys.stdin.read()
setattr(kind, name, ending)
async def main():
    async with Host(isolate="native") as host, host.session(working_dir=sys.argv[4], packages=["tiny-demo"]):
        await asyncio.sleep(100)
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("kind", "name", "when"),
    [
        ("Environments", "_wheel", "before"),  # resolved
        ("Environments", "_unpack", "before"),  # fetched
        ("Store", "add_wheel", "before"),
        ("Store", "add_answer", "before"),
        ("Store", "link", "after"),
        ("Store", "make_environment", "after"),
        ("Store", "add_bytecode", "before"),
    ],
)
async def test_a_host_that_is_killed_at_a_step_hinders_no_other(
    shop: Shop, kind: str, name: str, when: str, upstream: Index, store: Store, tmp_path: Path
) -> None:
    env = {**os.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": upstream.url}
    command = [sys.executable, "-c", KILLED, kind, name, when, str(tmp_path)]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert await asyncio.to_thread(program.stdout.readline) == b"here\n"
        below = processes.below(program.pid)
        program.kill()
    await processes.eventually(lambda: not any(map(processes.alive, below)), 60)
    async with shop() as host:
        await start(host, tmp_path, "tiny-demo")
    assert store.verify() == []
    assert os.listdir(f"{store.directory}/building") == []
    assert len(os.listdir(f"{store.directory}/environments")) == 1


async def test_bytecode_is_linked_later(shop: Shop, tmp_path: Path) -> None:
    async with shop() as host, host.session(working_dir=tmp_path, packages=["tiny-demo"]) as session:
        while host.environments._compiling:
            await asyncio.sleep(0.05)
        code = "import tiny_demo, os; os.path.exists(tiny_demo.__cached__)"
        assert await value(session, code) is True


async def test_a_kernel_that_starts_anew_has_the_same_packages(shop: Shop, tmp_path: Path) -> None:
    async with shop() as host, host.session(working_dir=tmp_path, packages=["tiny-demo"]) as session:
        await session.reset()
        assert await value(session, "import tiny_demo; tiny_demo.ANSWER") == 42
        assert (await ok(session, "!python -c 'import tiny_demo; print(tiny_demo.ANSWER)'")).output == "42\n"
        assert session.has_packages


async def test_the_interpreters_versions_are_constraints(shop: Shop, tmp_path: Path) -> None:
    async with shop() as host, host.session(working_dir=tmp_path) as session:
        result = await session.install("idna==0.1")
        assert result.error is not None
        assert "its interpreter has idna" in result.error.evalue
        assert "--ignore-installed" in result.error.evalue
        result = await session.install("idna")
        assert result.output == "Requirement already satisfied\n"


async def test_files_of_requirements_choose_no_index(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("# ours\ntiny-demo>=1  # pinned elsewhere\n")
    (tmp_path / "all.txt").write_text("-r good.txt\n")
    async with shop() as host, host.session(working_dir=tmp_path, images_dir=tmp_path) as session:
        for line in ("--index-url http://evil.example", "-e .", "x @ https://evil.example/x.whl", "file:///etc/passwd"):
            (tmp_path / "bad.txt").write_text(f"{line}\n")
            result = await session.install("-r", "bad.txt")
            assert result.error is not None
            assert "only requirements and -r are supported" in result.error.evalue
        result = await session.install("-r", "/etc/shadow")
        assert result.error is not None
        assert "/etc/shadow: " in result.error.evalue
        assert (await session.install("-r", "all.txt")).output == "Successfully installed tiny-demo-1.0\n"
