"""Attacks on the installation of packages: by the session's code while pip runs, and by what is installed."""

from __future__ import annotations

import io
import os
import re
import tarfile
import threading
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cellblock import CommandRequest, Host, Policy, Session
from cellblock.walls.sandbox.policy import Resources
from cellblock.walls.sandbox.tiers import TIERS
from cells import ok, value
from package_index import PASSWORD, Index, package_index, wheel

# A package that is built from source, without anything that would have to be fetched for that. Its build looks around.
BACKEND = """
import json, os, socket, urllib.request, zipfile

def attempt(action):
    try:
        return str(action())
    except Exception as error:
        return type(error).__name__

def look():
    seen = {{"environment": {password!r} in str(os.environ) + str(open("/proc/self/cmdline").read())}}
    for process in filter(str.isdigit, os.listdir("/proc")):
        for name in ("environ", "cmdline"):
            try:
                seen["environment"] |= {password!r} in open(f"/proc/{{process}}/{{name}}").read()
            except OSError:
                pass
    seen["direct"] = attempt(lambda: socket.create_connection(("127.0.0.1", {port}), 2))
    ports = [int(line.split()[1].split(":")[1], 16) for line in open("/proc/net/tcp").readlines()[1:] if line.split()[3] == "0A"]
    for port in ports:
        request = urllib.request.Request(f"http://127.0.0.1:{{port}}/simple/", data=b"stolen")
        seen["post"] = attempt(lambda: urllib.request.urlopen(request, timeout=2))
    return seen

def build_wheel(directory, settings=None, metadata=None):
    info = "spy-1.0.dist-info"
    with zipfile.ZipFile(f"{{directory}}/spy-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("spy.py", f"SEEN = {{look()!r}}\\n")
        archive.writestr(f"{{info}}/METADATA", "Metadata-Version: 2.1\\nName: spy\\nVersion: 1.0\\n")
        archive.writestr(f"{{info}}/WHEEL", "Wheel-Version: 1.0\\nGenerator: hand\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(f"{{info}}/RECORD", "")
    return "spy-1.0-py3-none-any.whl"
"""

# What the session's own code does meanwhile, in a thread: it looks for the password and for ways to the index.
WATCH = """
import os, socket, threading
looking, found = True, []
def look():
    while looking:
        for process in filter(str.isdigit, os.listdir("/proc")):
            for name in ("environ", "cmdline"):
                try:
                    text = open(f"/proc/{process}/{name}").read()
                except OSError:
                    continue
                if SECRET in text or "run_pip" in text:
                    found.append(text)
        for line in open("/proc/net/tcp").readlines()[1:]:
            if line.split()[3] == "0A":
                found.append(line)
watcher = threading.Thread(target=look)
watcher.start()
""".replace("SECRET", repr(PASSWORD))

# What is planted where pip, and the interpreter that it runs in, would look.
PLANT = """
import os, pathlib
def plant(path, text):
    try:
        path = pathlib.Path(path).expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    except OSError:
        pass
here = os.getcwd()
plant("evil.sh", f"#!/bin/sh\\ntouch {here}/planted\\n")
program = f"open({here + '/planted'!r}, 'w')"
conf = f"[global]\\npython = {here}/evil.sh\\nindex-url = http://127.0.0.1:9/simple\\n"
for path in ("~/.config/pip/pip.conf", "~/.pip/pip.conf", "pip.conf", "/tmp/pip.conf"):
    plant(path, conf)
for name in ("sitecustomize.py", "usercustomize.py", "pip.py", "pip/__init__.py", "ensurepip.py", "runpy.py", "zipfile.py"):
    for place in (".", "/tmp", "/tmp/.packages", "~/.local/lib/python3.11/site-packages"):
        plant(f"{place}/{name}", program)
plant("~/.pydistutils.cfg", "[install]\\nprefix=/tmp\\n")
os.environ.update(PIP_PYTHON=f"{here}/evil.sh", PIP_CONFIG_FILE=f"{here}/pip.conf", PYTHONPATH=here, PYTHONSTARTUP=f"{here}/pip.py")
"""


@pytest.fixture(scope="module")
def upstream() -> Iterator[Index]:
    with package_index() as index:
        yield index


@pytest.fixture(scope="module")
async def shop(upstream: Index) -> AsyncIterator[Host]:
    """A host whose pip takes packages from an index with a password."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith("PIP_"):
                patch.delenv(name)
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        patch.setenv("PIP_INDEX_URL", upstream.url)
        host = Host(isolate="native")
    async with host:
        yield host


@pytest.fixture
async def session(shop: Host, tmp_path: Path) -> AsyncIterator[Session]:
    async with shop.session(working_dir=tmp_path, images_dir=tmp_path / "images") as session:
        yield session


@contextmanager
def command_lines(word: str) -> Iterator[set[str]]:
    """Collect the command lines of all processes of the machine that contain a word."""
    found: set[str] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.002):
            for pid in filter(str.isdigit, os.listdir("/proc")):
                with suppress(OSError):
                    line = Path("/proc", pid, "cmdline").read_text()
                    found.update([line] if word in line else [])

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield found
    finally:
        over.set()
        watcher.join()


@pytest.mark.slow
async def test_code_of_the_session_finds_no_password_and_no_way_to_the_index(session: Session, upstream: Index) -> None:
    await ok(session, WATCH)
    with command_lines("--index-url") as shown:
        result = await ok(session, "%pip install tiny-demo\nimport tiny_demo")
    assert PASSWORD not in f"{result.text}{result.output}"
    # Other users of the machine can read command lines, and without a sandbox they can reach the listener.
    urls = {argument for line in shown for argument in line.split("\0") if argument.startswith("http:")}
    assert urls
    assert all(re.fullmatch(r"http://127\.0\.0\.1:\d+/0/", url) for url in urls)
    assert await value(session, "looking = False\nwatcher.join()\nfound[:5]") == []
    assert not upstream.refused


@pytest.mark.slow
async def test_what_is_built_from_source_finds_no_password_and_no_network(
    session: Session, upstream: Index, tmp_path: Path
) -> None:
    (tmp_path / "spy").mkdir()
    (tmp_path / "spy" / "backend.py").write_text(BACKEND.format(password=PASSWORD, port=upstream.port))
    (tmp_path / "spy" / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    asked = len(upstream.asked)
    await ok(session, "%pip install ./spy")
    assert await value(session, "import spy; spy.SEEN") == {
        "environment": False,
        "direct": "ConnectionRefusedError",
        "post": "HTTPError",
    }
    assert upstream.asked[asked:] == []


@pytest.mark.slow
async def test_an_approval_of_pip_runs_pip_and_nothing_that_was_planted(shop: Host, tmp_path: Path) -> None:
    asked = []

    async def decide(request: CommandRequest) -> bool:
        asked.append(request.command)
        return request.command == "%pip install tiny-demo"

    options = {"working_dir": tmp_path, "images_dir": tmp_path / "images"}
    async with shop.session(on_command=decide, forbid_programs=True, **options) as session:  # type: ignore[arg-type]
        await ok(session, PLANT)
        await ok(session, "%pip install tiny-demo")
        assert await value(session, "import tiny_demo; tiny_demo.ANSWER") == 42
    assert asked == ["%pip install tiny-demo"]
    assert not (tmp_path / "planted").exists()


async def test_packages_are_not_the_sessions_to_write(session: Session) -> None:
    code = "try:\n    open('/tmp/.packages/x', 'w')\nexcept OSError as error:\n    print(error.strerror)"
    assert (await ok(session, code)).output == "Read-only file system\n"


@pytest.mark.parametrize(("packages", "said"), [(0, "policy forbids installing packages"), (1, "more than 0 MiB of packages")])
async def test_a_policy_limits_and_forbids_packages(packages: int, said: str, shop: Host, tmp_path: Path) -> None:
    policy = Policy(resources=Resources(packages=packages))
    async with shop.session(working_dir=tmp_path, images_dir=tmp_path, policy=policy) as session:
        place = Path(session._around.packages.place)
        (place / "lib").mkdir()
        (place / "lib" / "data").write_bytes(bytes(10_000))
        result = await session.install("tiny-demo")
    assert result.error is not None
    assert said in result.error.evalue


SETUP = """
import os, pathlib, sys
def look():
    found = [path for path in (os.environ.get("WORKSPACE", ""), SECRET) if path and os.path.exists(path)]
    return found + [value for name, value in os.environ.items() if name == "TOKEN"]
def build_wheel(directory, settings=None, metadata=None):
    BODY
    import zipfile
    info = "dug-1.0.dist-info"
    with zipfile.ZipFile(f"{directory}/dug-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("dug.py", f"SEEN = {look()!r}\\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: dug\\nVersion: 1.0\\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nGenerator: hand\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(f"{info}/RECORD", "")
    return "dug-1.0-py3-none-any.whl"
"""


def offer(upstream: Index, project: str, name: str, data: bytes, digest: str = "") -> None:
    """Add an archive to the index."""
    fragment = f"#sha256={digest}" if digest else ""
    upstream.pages[f"/simple/{project}/"] = ("text/html", f'<a href="/files/{name}{fragment}">{name}</a>'.encode())
    upstream.pages[f"/files/{name}"] = ("application/zip", data)


def source_archive(body: str, secret: str = "") -> bytes:
    """Return a source archive whose build looks around."""
    data = io.BytesIO()
    files = {
        "backend.py": SETUP.replace("SECRET", repr(secret)).replace("BODY", body),
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "PKG-INFO": "Metadata-Version: 2.1\nName: dug\nVersion: 1.0\n",
    }
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(f"dug-1.0/{name}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return data.getvalue()


@pytest.mark.slow
async def test_a_build_sees_nothing_of_the_session(shop: Host, upstream: Index, tmp_path: Path) -> None:
    """Its wheel is shared with all sessions, so that it could carry secrets from one to the others."""
    (tmp_path / "secret.txt").write_text("secret")
    offer(upstream, "dug", "dug-1.0.tar.gz", source_archive("pass", str(tmp_path / "secret.txt")))
    env = {"TOKEN": "hush", "WORKSPACE": str(tmp_path)}
    async with shop.session(working_dir=tmp_path, images_dir=tmp_path, kernel_env=env) as session:
        await ok(session, "%pip install dug")
        assert await value(session, "import dug; dug.SEEN") == []


@pytest.mark.slow
async def test_a_build_that_fills_the_disk_is_stopped(shop: Host, upstream: Index, tmp_path: Path) -> None:
    body = "import time\n    open('/tmp/.out/big', 'wb').write(bytes(60_000_000))\n    time.sleep(30)"
    offer(upstream, "dug", "dug-1.0.tar.gz", source_archive(body))
    policy = Policy(resources=Resources(packages=20 * 2**20))
    async with shop.session(working_dir=tmp_path, images_dir=tmp_path, policy=policy) as session:
        result = await session.install("dug")
        assert result.error is not None
        assert "over the limit of this session" in result.error.evalue


@pytest.mark.slow
async def test_another_archive_than_the_index_names_is_refused(session: Session, upstream: Index) -> None:
    offer(upstream, "liar", "liar-1.0-py3-none-any.whl", wheel("liar"), digest="0" * 64)
    result = await session.install("liar")
    assert result.error is not None
    assert "cannot be" in result.error.evalue or "hash" in result.error.evalue
    result = await session.execute("import liar")
    assert result.error is not None


@pytest.mark.slow
async def test_a_wheel_that_leaves_its_directory_is_refused(session: Session, upstream: Index) -> None:
    data = io.BytesIO(wheel("leaver"))
    with zipfile.ZipFile(data, "a") as archive:
        archive.writestr("../../../evil.py", "")
    offer(upstream, "leaver", "leaver-1.0-py3-none-any.whl", data.getvalue())
    result = await session.install("leaver")
    assert result.error is not None
    assert "leaver-1.0-py3-none-any.whl is not installed: the path '../../../evil.py' is not allowed" in result.error.evalue


DAMAGE = """
import os
def attempt(action):
    try:
        action()
        return "done"
    except OSError as error:
        return type(error).__name__
import tiny_demo
path = tiny_demo.__file__
top = os.path.dirname(path)
os.makedirs("mine", exist_ok=True)
results = {
    "write": attempt(lambda: open(path, "w")),
    "chmod": attempt(lambda: os.chmod(path, 0o777)),
    "new": attempt(lambda: open(top + "/evil.py", "w")),
    "bytecode": attempt(lambda: os.makedirs(top + "/__pycache__") or open(top + "/__pycache__/tiny_demo.cpython-311.pyc", "w")),
    "unlink": attempt(lambda: os.unlink(path)),
    "rename": attempt(lambda: os.rename(path, path + "x")),
    "link": attempt(lambda: os.link(path, "mine/tiny_demo.py")),
    "times": attempt(lambda: os.utime(path)),
}
{name: result for name, result in results.items() if result == "done"}
"""


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("isolate", ["native", "landlock"])
async def test_no_session_changes_what_others_import(isolate: str, upstream: Index, tmp_path: Path) -> None:
    if TIERS[isolate].missing():
        pytest.skip(f"{isolate} is not available")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        patch.setenv("PIP_INDEX_URL", upstream.url)
        host = Host(isolate=isolate)  # type: ignore[arg-type]
    async with host, host.session(working_dir=tmp_path, images_dir=tmp_path, packages=["tiny-demo"]) as session:
        assert await value(session, DAMAGE) == {}
        await ok(session, "%pip install -I tiny-demo\nimport sys\ndel sys.modules['tiny_demo']")
        assert await value(session, DAMAGE) == {}
        assert host.environments.store.verify() == []


def flood(name: str, size: int) -> bytes:
    """Return a wheel that unpacks to many bytes."""
    data = io.BytesIO(wheel(name))
    with zipfile.ZipFile(data, "a", zipfile.ZIP_DEFLATED) as archive:
        for number in range(20):
            archive.writestr(f"{name}/{number}.bin", os.urandom(1000) * (size // 20_000))
    return data.getvalue()


@pytest.mark.slow
async def test_packages_that_grow_over_their_limit_are_refused(shop: Host, upstream: Index, tmp_path: Path) -> None:
    offer(upstream, "big", "big-1.0-py3-none-any.whl", flood("big", 50 * 2**20))
    policy = Policy(resources=Resources(packages=20 * 2**20))
    async with shop.session(working_dir=tmp_path, images_dir=tmp_path, policy=policy) as session:
        result = await session.install("big")
        assert result.error is not None
        assert "20 MiB" in result.error.evalue
        assert (await session.execute("import big")).error is not None
        await ok(session, "%pip install tiny-demo")
