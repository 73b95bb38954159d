"""Environments with names: a name is a lock, which sessions keep when the name moves."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from cellblock import ConflictError, Environment, Host, InvalidInputError, LaunchError, NotFoundError
from cellblock.common.environments import Base, PackageSet
from cellblock.host.environments.named_environments import Names, packages_of
from cellblock.host.environments.store import Source, Store
from cells import ok, value
from package_index import PASSWORD, Index

from .conftest import Shop

DEMO = Environment(packages=["tiny-demo"])
BASES: tuple[Base, ...] = ("empty", "interpreter")


async def version_in(host: Host, directory: Path, environment: Environment | str) -> str:
    async with host.session(working_dir=directory, environment=environment) as session:
        return str(await value(session, "import importlib.metadata as m; m.version('tiny-demo')"))


@pytest.mark.slow
async def test_a_name_moves_and_sessions_keep_their_packages(
    shop: Shop, upstream: Index, store: Store, tmp_path: Path
) -> None:
    async with shop() as host:
        first = await host.create_environment("data", DEMO)
        assert await host.create_environment("data", DEMO) == first, "the operation is idempotent"
        async with host.session(working_dir=tmp_path, environment="data") as session:
            upstream.publish("tiny_demo", "2.0")
            assert (await host.create_environment("data", DEMO)).key == first.key
            moved = await host.create_environment("data", upgrade=True)
            assert moved.lock.packages == ("tiny-demo==2.0",)
            assert await version_in(host, tmp_path, "data") == "2.0"
            await session.reset()
            assert await value(session, "import importlib.metadata as m; m.version('tiny-demo')") == "1.0"
        asked = len(upstream.asked)
        back = await host.create_environment("data", Environment(lock=moved.previous), upgrade=True)
        assert (back.key, back.lock.base) == (first.key, "empty")
        store.prune()
        assert await version_in(host, tmp_path, "data") == "1.0"
        assert len(upstream.asked) > asked
    assert not os.path.exists(moved.previous)


@pytest.mark.slow
async def test_a_minimum_age_counts_for_packages_and_not_for_a_lock(
    shop: Shop, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shop() as host:
        made = await host.create_environment("data", DEMO)
        lock = tmp_path / "pylock.toml"
        lock.write_text(Names(store).lock_text(made))
    monkeypatch.setenv("CELLBLOCK_ENVIRONMENT_NEWEST", "7 days")
    for home in (store.directory, str(tmp_path / "home")):
        monkeypatch.setenv("CELLBLOCK_HOME", home.removesuffix("/environments"))
        async with shop() as host:
            with pytest.raises(InvalidInputError, match=r"environment_newest hides 1 of the index's files: .* uploaded\)"):
                await host.create_environment("new", DEMO)
            assert (await host.create_environment("locked", Environment(lock=lock))).key == made.key
    monkeypatch.setenv("CELLBLOCK_ENVIRONMENT_NEWEST", "7")
    async with shop() as host:
        with pytest.raises(InvalidInputError, match="environment_newest in CELLBLOCK_ENVIRONMENT_NEWEST must be an age"):
            await host.create_environment("new", DEMO)


@pytest.mark.slow
async def test_a_removed_name_comes_back_by_its_lock(shop: Shop, store: Store, tmp_path: Path) -> None:
    names, said = Names(store), list[str]()
    async with shop() as host:
        host.environments.report = said.append
        made = await host.create_environment("data", DEMO)
        assert said == ["resolving tiny-demo", "installed 1 of 1 packages"]
        assert [one.name for one in names.all()] == ["data"]
        assert store.collect(0, 0.0) == [], "a named environment stays"
        path = names.remove("data")
        with pytest.raises(NotFoundError, match="there is no environment 'data'"):
            host.session(working_dir=tmp_path, environment="data")
        again = await host.create_environment("data", Environment(lock=path))
        assert (again.key, again.lock) == (made.key, made.lock)
        names.remove("data")
        assert len(store.prune()) == 1
        assert not os.path.exists(path)


@pytest.mark.slow
async def test_mistakes_change_nothing(shop: Shop, store: Store) -> None:
    async with shop() as host:
        made = await host.create_environment("data", DEMO)
        with pytest.raises(ConflictError, match="exists with other packages: pass upgrade"):
            await host.create_environment("data", Environment(packages=["tiny-demo>=1"]))
        with pytest.raises(InvalidInputError, match="no-such-package cannot be installed"):
            await host.create_environment("data", Environment(packages=["no-such-package"]), upgrade=True)
        with pytest.raises(InvalidInputError, match="name the packages of environment 'other'"):
            await host.create_environment("other", upgrade=True)
        with pytest.raises(InvalidInputError, match="the name of an environment has up to 64"):
            await host.create_environment("../data", DEMO)
        with pytest.raises(NotFoundError, match="did you mean 'data'"):
            packages_of("dato")
    assert Names(store).get("data") == made


@pytest.mark.slow
@pytest.mark.sampled(1)
async def test_a_lock_has_urls_without_credentials_and_is_checked(
    shop: Shop, upstream: Index, store: Store, tmp_path: Path
) -> None:
    names = Names(store)
    async with shop() as host:
        text = names.lock_text(await host.create_environment("data", DEMO))
        assert PASSWORD not in text
        (package,) = tomllib.loads(text)["packages"]
        (file,) = package["wheels"]
        assert file["url"] == f"http://127.0.0.1:{upstream.port}/files/{file['name']}"
        path = tmp_path / "pylock.toml"
        path.write_text(text)
        assert await version_in(host, tmp_path, Environment(lock=path)) == "1.0"
        # Another URL is not fetched, and another hash is not accepted.
        path.write_text(text.replace(file["url"], "http://evil.example/tiny_demo-1.0-py3-none-any.whl"))
        assert await version_in(host, tmp_path, Environment(lock=path)) == "1.0"
        path.write_text(text.replace(file["hashes"]["sha256"], "0" * 64))
        with pytest.raises(LaunchError, match=r"the index has no file of tiny-demo==1\.0 with a hash in the lock"):
            await version_in(host, tmp_path, Environment(lock=path))


def test_a_lock_names_source_archives_and_files(store: Store) -> None:
    names, digest = Names(store), "0" * 64
    store.add_source("1" * 64, Source("spy-1.0.tar.gz", "file:///srv/it%27s/spy-1.0.tar.gz", digest))
    with store.building() as made:
        store.make_environment("key", "kind", [], made)
    Path(store.directory, "environments", "key", "wheels").write_text(f'[["spy", "1.0", "{"1" * 64}"]]')
    lock = PackageSet(("spy==1.0",), {"spy": (digest,)}, exact=True)
    record = {"environments": "key", "made": 0.0, "asked": lock.to_dict(), "lock": lock.to_dict()}
    store.add_name("data", record)
    (package,) = tomllib.loads(names.lock_text(names.get("data")))["packages"]
    assert package["sdist"] == {"name": "spy-1.0.tar.gz", "path": "/srv/it's/spy-1.0.tar.gz", "hashes": {"sha256": digest}}


@pytest.mark.slow
@pytest.mark.sampled(1)
async def test_hashes_in_requirements_are_checked(shop: Shop, tmp_path: Path) -> None:
    needs = tmp_path / "needs.txt"
    needs.write_text(f"tiny-demo==1.0 --hash=sha256:{'0' * 64}\n")
    async with shop() as host:
        with pytest.raises(LaunchError, match=r"in the package index has the hash \w+, which .*needs\.txt does not list"):
            await version_in(host, tmp_path, Environment(requirements=needs))


LOOK = """
import subprocess, sys, tiny_demo, jedi
def missing(name):
    try:
        __import__(name)
    except ImportError:
        return True
child = "import os, sys, tiny_demo; print([path for path in sys.path if 'packages' in path], os.environ['VIRTUAL_ENV'])"
(missing("pydantic"), missing("pytest"), sys.prefix, subprocess.check_output([sys.executable, "-c", child], text=True))
"""


@pytest.mark.slow
async def test_an_empty_base_hides_the_interpreters_packages(shop: Shop, tmp_path: Path) -> None:
    async with shop() as host:
        environment = Environment(packages=["tiny-demo"], base="empty")
        async with host.session(working_dir=tmp_path, environment=environment) as session:
            child = "['/tmp/.packages/0/site-packages', '/dev/shm/.environment/site-packages'] /dev/shm/.environment\n"
            assert await value(session, LOOK) == (True, True, "/dev/shm/.environment", child)
            result = await session.execute("%pip install pydantic")
            assert result.error is not None, "the interpreter's does not count"
        async with host.session(working_dir=tmp_path, environment=Environment(packages=["tiny-demo"])) as session:
            assert await value(session, "import pydantic, tiny_demo; tiny_demo.ANSWER") == 42


@pytest.mark.slow
@pytest.mark.sampled(1)
async def test_pth_files_are_processed_in_the_sandbox(shop: Shop, upstream: Index, tmp_path: Path) -> None:
    files = {
        "with_pth_inner/inner.py": "ANSWER = 43\n",
        "with_pth.pth": "with_pth_inner\nimport sys; sys.from_pth = open('/proc/self/uid_map').read()\n",
        "with_pth_error.pth": "import sys; sys.before = 1\nimport no_such_module\nimport sys; sys.after = 1\n",
        "with_pth_exit.pth": "import sys; sys.exit(3)\n",
    }
    upstream.publish("with_pth", files=files)
    inside = "sys.from_pth == open('/proc/self/uid_map').read()"
    look = f"import inner, sys; inner.ANSWER, {inside}, sys.before, hasattr(sys, 'after')"
    async with shop() as host:
        for base in BASES:
            environment = Environment(packages=["with-pth"], base=base)
            async with host.session(working_dir=tmp_path, environment=environment) as session:
                assert await value(session, look) == (43, True, 1, False)
        async with host.session(working_dir=tmp_path) as session:
            await ok(session, "%pip install -q with-pth")
            assert not (await session.execute("import inner")).ok, "as with pip: from the next start on"
            await session.reset()
            assert (await value(session, look))[0] == 43
