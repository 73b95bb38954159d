"""Trusted environments: their packages are imported before kernels start, and no others."""

from __future__ import annotations

import importlib.util
import os
import stat
from pathlib import Path

import pytest

from cellblock import Environment, Host, InvalidInputError, LaunchError, PreloadError, Session
from cellblock.host.environments.named_environments import Names
from cellblock.host.environments.store import Store
from cellblock.host.environments.trust import Trust
from cellblock.walls.linux import landlock
from cells import value
from package_index import Index

from .conftest import Shop

_SPY = {
    "spy.py": "import os\nPID = os.getpid()\nPLANTED = False\n",
    "spy_parts/__init__.py": "",
    "spy_parts/late.py": "from spy import PID\n",
    # None of these may run in a zygote.
    "spy.pth": "import os, sys; sys.from_pth = [*getattr(sys, 'from_pth', ()), os.getpid()]\n",
    "sitecustomize.py": "import sys; sys.customized = True\n",
    "usercustomize.py": "import sys; sys.customized = True\n",
    "IPython/__init__.py": "import sys; sys.fake = True\n",
    "pygments/__init__.py": "import sys; sys.fake = True\n",
    "stack_data/__init__.py": "import sys; sys.fake = True\n",
}
_LOOK = """
import os, sys
before = "spy" in sys.modules
import spy, spy_parts.late, IPython
fake = hasattr(sys, "fake") or hasattr(sys, "customized")
found = (before, spy.PLANTED, fake, sys.from_pth == [os.getpid()], os.path.exists(spy.__file__), IPython.__version__ > "")
found
"""
_PRELOADED = (True, False, False, True, True, True)


@pytest.fixture
def upstream(upstream: Index) -> Index:
    upstream.publish("spy", files=_SPY)
    return upstream


def zygotes(host: Host) -> list[tuple[str, ...]]:
    """Return the modules of each zygote with packages of an environment."""
    return [key.preload for key in host.kernels.launchers.in_use if key.environment]


def test_trust_is_a_file_that_only_its_user_can_write(store: Store) -> None:
    trust = Trust()
    assert "key" not in trust
    trust.add("key")
    trust.add("key")
    assert "key" in trust
    (directory,) = Path(store.directory).parent.glob("trusted*")
    assert (stat.S_IMODE(directory.stat().st_mode), stat.S_IMODE((directory / "key").stat().st_mode)) == (0o700, 0o600)
    (directory / "link").symlink_to(directory / "key")
    assert "link" not in trust
    trust.remove("key")
    trust.remove("key")
    assert "key" not in trust


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("base", ["empty", "interpreter"])
async def test_only_what_is_named_runs_in_the_zygote(shop: Shop, tmp_path: Path, base: str) -> None:
    environment = Environment(packages=["spy"], base=base, trusted=True)  # type: ignore[arg-type]
    async with shop() as host:
        async with host.session(working_dir=tmp_path, environment=environment, preload=["spy"]) as session:
            assert await value(session, _LOOK) == _PRELOADED
            assert await value(session, "spy.PID != os.getpid(), spy.__file__.startswith('/dev/shm/.environment/')") == (
                True,
                True,
            )
            await session.reset()
            assert await value(session, _LOOK) == _PRELOADED
        async with host.session(working_dir=tmp_path, environment=environment) as session:
            assert (await value(session, _LOOK))[0] is False, "without preload, all environments share a zygote"
        assert zygotes(host) == [("spy",)]


@pytest.mark.slow
@pytest.mark.parametrize(("isolate", "launch"), [("none", "zygote"), ("landlock", "zygote"), ("native", "spawn")])
async def test_every_kind_of_kernel_preloads(shop: Shop, tmp_path: Path, isolate: str, launch: str) -> None:
    if isolate == "landlock" and (missing := landlock.missing()):
        pytest.skip("; ".join(missing))
    environment = Environment(packages=["spy"], base="empty", trusted=True)
    async with (
        shop(isolate=isolate, launch=launch) as host,
        host.session(working_dir=tmp_path, environment=environment, preload=["spy"]) as session,
    ):
        assert await value(session, _LOOK) == _PRELOADED


@pytest.mark.slow
async def test_trust_is_in_packages_not_in_their_name(shop: Shop, upstream: Index, store: Store, tmp_path: Path) -> None:
    async def start(host: Host) -> None:
        async with host.session(working_dir=tmp_path, environment="data", preload=["spy"]) as session:
            assert await value(session, _LOOK) == _PRELOADED

    async with shop() as host:
        made = await host.create_environment("data", Environment(packages=["spy"]))
        with pytest.raises(
            PreloadError, match=r"outside of the sandbox, and .* If you trust them: 'cellblock env trust data'"
        ):
            await start(host)
        unnamed = Environment(packages=["spy"], base="interpreter")
        with pytest.raises(PreloadError, match=r"'cellblock env trust NAME'; or Environment\(trusted=True\)"):
            async with host.session(working_dir=tmp_path, environment=unnamed, preload=["spy"]):
                pass
        assert zygotes(host) == []
        Trust().add(made.key)
        await start(host)
        assert Names(store).get("data").trusted
        upstream.publish("spy", "2.0", _SPY)
        moved = await host.create_environment("data", upgrade=True)
        assert (moved.key == made.key, moved.trusted) == (False, False)
        with pytest.raises(PreloadError, match="cellblock env trust data"):
            await start(host)
        trusting = Environment(packages=["spy"], trusted=True)
        assert (await host.create_environment("data", trusting, upgrade=True)).trusted
        await start(host)
        Trust().remove(moved.key)
        with pytest.raises(PreloadError, match="cellblock env trust data"):
            await start(host)


@pytest.mark.slow
async def test_a_few_idle_zygotes_stay(shop: Shop, tmp_path: Path) -> None:
    environment = Environment(packages=["spy"], base="empty", trusted=True)
    async with shop(isolate="none") as host:
        for modules in (["spy"], ["spy", "spy_parts"], ["spy_parts"]):
            async with host.session(working_dir=tmp_path, environment=environment, preload=modules):
                pass
        assert zygotes(host) == [("spy", "spy_parts"), ("spy_parts",)]
        assert host.warm == set(), "these modules are not the interpreter's"


@pytest.mark.slow
async def test_damaged_files_are_not_imported(shop: Shop, store: Store, tmp_path: Path) -> None:
    async def look(host: Host) -> object:
        async with host.session(working_dir=tmp_path, environment="data", preload=["spy"]) as session:
            return await value(session, _LOOK)

    async with shop(isolate="none") as host:
        made = await host.create_environment("data", Environment(packages=["spy"], trusted=True), isolate="native")
        place = Path(store.environment(made.key), "site-packages")
        while host.environments._compiling:
            await next(iter(host.environments._compiling.values()))
        # Bytecode has no manifest.
        source = place / "spy.py"
        status = source.stat()
        code = compile("import os; PID, PLANTED = os.getpid(), True", source, "exec")
        data = importlib._bootstrap_external._code_to_timestamp_pyc(code, int(status.st_mtime), status.st_size)  # type: ignore[attr-defined]
        bytecode = Path(importlib.util.cache_from_source(str(source)))
        bytecode.parent.mkdir(exist_ok=True)
        bytecode.unlink(missing_ok=True)
        bytecode.write_bytes(data)
        assert await look(host) == _PRELOADED
    for damage in (place / "spy.py", place / "planted.py"):
        before = damage.read_text() if damage.exists() else None
        damage.write_text("PLANTED = True\n")
        async with shop(isolate="none") as host:
            with pytest.raises(LaunchError, match=f"{damage.name} is damaged: 'cellblock env verify' tells how to rebuild"):
                await look(host)
        if before is None:
            damage.unlink()
        else:
            damage.write_text(before)
    async with shop(isolate="none") as host:
        assert await look(host) == _PRELOADED


@pytest.mark.slow
async def test_a_module_that_is_not_in_the_environment_is_named(shop: Shop, tmp_path: Path) -> None:
    environment = Environment(packages=["spy"], base="empty", trusted=True)
    async with shop(isolate="none") as host:
        with pytest.raises(PreloadError, match=r"the environment in .* cannot import a module of preload=\('pydantic',\)"):
            async with host.session(working_dir=tmp_path, environment=environment, preload=["pydantic"]):
                pass


_ATTACK = """
import os
def attempt(action):
    try:
        return action()
    except OSError as error:
        return type(error).__name__
def write(path):
    with open(path, "w"):
        return "written"
found = [attempt(lambda: write(path)) for path in PATHS] + [attempt(lambda: os.listdir(HOME))]
found += [attempt(lambda: os.chmod(path, 0o777)) for path in PATHS]
sorted({str(one) for one in found if one is not None} - {"FileNotFoundError", "PermissionError", "OSError"})
"""


@pytest.mark.slow
@pytest.mark.parametrize("isolate", ["native", "landlock"])
async def test_a_session_cannot_write_the_record_or_the_store(shop: Shop, store: Store, tmp_path: Path, isolate: str) -> None:
    if isolate == "landlock" and (missing := landlock.missing()):
        pytest.skip("; ".join(missing))

    async def attack(session: Session, paths: list[str]) -> object:
        return await value(session, _ATTACK.replace("PATHS", repr(paths)).replace("HOME", repr(home)))

    home = str(Path(store.directory).parent)
    environment = Environment(packages=["spy"], base="empty", trusted=True)
    async with shop(isolate=isolate) as host:
        made = await host.create_environment("data", environment)
        record = f"{home}/trusted-environments/{made.key}"
        os.unlink(record)
        prefix = store.environment(made.key)
        paths = [record, f"{prefix}/site-packages/spy.py", f"{prefix}/site-packages/planted.py"]
        paths += ["/dev/shm/.environment/site-packages/planted.py"] if isolate == "native" else []
        async with host.session(working_dir=tmp_path, environment=environment, preload=["spy"]) as session:
            assert await attack(session, [*paths, "/dev/shm/.environment/site-packages/spy.py"]) == []
        assert (made.key in Trust(), store.verify()) == (False, [])


def test_a_client_cannot_claim_trust() -> None:
    data = Environment(packages=["spy"], trusted=True).read()
    with pytest.raises(InvalidInputError, match="trusted=True is for sessions of this process"):
        data.for_daemon()
    assert "trusted" not in data.to_dict()
    with pytest.raises(InvalidInputError, match="not 'trusted'"):
        type(data).from_dict({"packages": ["spy"], "trusted": True})
    with pytest.raises(InvalidInputError, match="trusted of an environment must be True or False"):
        Environment(packages=["spy"], trusted="yes")  # type: ignore[arg-type]
