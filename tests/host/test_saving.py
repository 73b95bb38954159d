"""`Session.save`, `Session.load` and `Host.load`: all that can be kept is back, and what is not is told."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import secrets
import zipfile
from pathlib import Path
from typing import Any

import pytest

from cellblock import (
    CodeExecutor,
    ExecutionTimeoutError,
    Host,
    InvalidInputError,
    KernelDiedError,
    Limits,
    ProtocolError,
    Session,
    StateError,
    StoreError,
)
from cellblock.host.checkpoints.checkpoints import Checkpoints
from cellblock.host.saved_file import VARIABLES, WORKSPACE, SavedFile
from cellblock.model import HistoryEntry
from cellblock.model.saving import LeftOut, LoadReport, SaveReport
from cellblock.walls.sandbox.policy import Network, Policy
from cellblock.wire.saved import Group, State
from processes import descriptors, eventually
from suite import first_quick


def write(path: Path, pickled: bytes, *, archive: bytes = b"", **fields: Any) -> Path:
    """Write a saved session as a stranger might, perhaps with an archive of files."""
    told: dict[str, Any] = {
        "groups": (Group(("x",), len(pickled), False),),
        "imports": {},
        "modules": (),
        "environment": {},
        "directory": "",
        "count": 1,
        "python": "3.11",
        "libraries": {},
        "left_out": (),
    }
    file = SavedFile(path)
    file.open()
    file.begin(VARIABLES)
    file.write(pickled)
    if archive:
        file.begin(WORKSPACE)
        file.write(archive)
    file.finish(State(**{**told, **fields}), [HistoryEntry("x", "success", 1)])
    file.close()
    return path


class Call:
    """Pickled, this is a call of a function by whoever loads it."""

    def __init__(self, function: Any, *arguments: object) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> Any:
        return self.reduced


async def test_a_session_goes_on_where_it_was_saved(native_host: Host, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    (first / "inner").mkdir(parents=True)
    (second / "inner").mkdir(parents=True)
    async with native_host.session(working_dir=first) as session:
        await session.execute(
            "import os, xml.dom.minidom, posixpath as p\nx = 1\nrows = [1]\nalias = {'rows': rows}\n_mine = 2"
        )
        await session.execute("def f(y=2):\n    return x + y\nregistry = {f: 'f'}")
        await session.execute("class C:\n    def m(self): return __class__ is C, f()\nc = C()\n1 / 0")
        await session.execute(
            "def outer():\n    n = 0\n    def up():\n        nonlocal n; n += 1; return n\n    return up, lambda: n"
        )
        await session.execute("up, now = outer(); os.environ['NEW'] = 'é'; del os.environ['LANG']")
        report = await session.save(tmp_path / "s.cellblock")
        assert set(report.saved) >= {"os", "xml", "p", "x", "rows", "alias", "_mine", "f", "registry", "C", "c", "up", "now"}
        assert (report.left_out, report.cells, report.files) == ([], 5, False)
        assert (await session.execute("sorted(Out), _i")).return_value is not None
        assert session.next_count == 7  # saving left no trace
    assert report.size == (tmp_path / "s.cellblock").stat().st_size
    async with await native_host.load(tmp_path / "s.cellblock", working_dir=second) as session:
        assert session.loaded == LoadReport(report.saved, [], 5)
        assert [(cell.execution_count, cell.status) for cell in session.history()][2:] == [
            (3, "error"),
            (4, "success"),
            (5, "success"),
        ]
        result = await session.execute(
            "x = 10\nprint(f(), registry[f], c.m(), alias['rows'] is rows, up(), now(), os.environ['NEW'])\n"
            "print(xml.dom.minidom.__name__, In[1][:9], os.path.basename(os.getcwd()), C.m.__globals__ is globals())"
        )
        assert result.output == ("12 f (True, 12) True 1 1 é\nxml.dom.minidom import os second True\n"), result.text
        assert result.execution_count == 6
        assert "1 / 0" not in str((await session.execute("import inspect; inspect.getsource(f)")).return_value)


async def test_what_cannot_be_kept_is_named_and_costs_nothing_else(session: Session, host: Host, tmp_path: Path) -> None:
    await session.execute("import threading; lock = threading.Lock(); rows = (i for i in 'ab'); x = [1]")
    await session.execute("class Bad:\n    def __reduce__(self): raise SystemExit('no')\nbad = [Bad()]")
    report = await session.save(tmp_path / "s")
    assert {one.name: one.reason for one in report.left_out} == {
        "lock": "TypeError: cannot pickle '_thread.lock' object",
        "rows": "TypeError: cannot pickle 'generator' object",
        "bad": "SystemExit: no",
    }
    assert report.saved == ["threading", "x", "Bad"]
    loaded = await session.load(tmp_path / "s")
    assert (loaded.loaded, loaded.left_out) == (report.saved, report.left_out)
    assert (await session.execute("x, list(threading.__name__[:1])")).return_value == "([1], ['t'])"
    assert SaveReport.from_dict(report.to_dict()) == report
    assert LoadReport.from_dict(loaded.to_dict()) == loaded


@pytest.mark.slow
async def test_a_library_that_is_missing_costs_only_what_needs_it(native_host: Host, tmp_path: Path) -> None:
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    (tmp_path / "with" / "mylib.py").write_text("__version__ = '1'\nclass Thing: pass\n")
    async with native_host.session(working_dir=tmp_path / "with") as session:
        await session.execute("import mylib; things = [mylib.Thing()]; same = things; shared = {}; other = [shared]; x = 1")
        await session.save(tmp_path / "s")
    async with await native_host.load(tmp_path / "s", working_dir=tmp_path / "without") as session:
        assert session.loaded is not None
        assert session.loaded.loaded == ["shared", "other", "x"]
        why = "ModuleNotFoundError: No module named 'mylib'"
        assert session.loaded.left_out == [
            LeftOut("mylib", why),
            LeftOut("things", f"{why}; it shares objects with same"),
            LeftOut("same", f"{why}; it shares objects with things"),
        ]
        assert (await session.execute("other[0] is shared, x")).return_value == "(True, 1)"


@pytest.mark.slow
async def test_very_many_variables_are_counted(session: Session, tmp_path: Path) -> None:
    await session.execute("globals().update({f'ok{i}': i for i in range(1000)})\nclass Bad:\n    def __reduce__(self): 1 / 0")
    await session.execute("globals().update({f'bad{i}': Bad() for i in range(6000)}); globals().update({'n' * 300_000: 1})")
    report = await session.save(tmp_path / "s")
    assert len(report.saved) == 1001
    assert report.left_out[-1].name == "…"
    assert len(report.left_out) - 1 + int(report.left_out[-1].reason.removesuffix(" more").replace(",", "")) == 6001
    assert len((await session.load(tmp_path / "s")).loaded) == 1001


@pytest.mark.slow
async def test_functions_of_another_python_are_left_out(session: Session, tmp_path: Path) -> None:
    await session.execute("x = 1\ndef f(): pass")
    path = tmp_path / "s"
    await session.save(path)
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    told = json.loads(members["manifest.json"])
    told["state"]["python"] = "9.99"
    with zipfile.ZipFile(path, "w") as new:
        for name, data in (members | {"manifest.json": json.dumps(told).encode()}).items():
            new.writestr(name, data)
    await session.load(path)
    assert session.loaded is not None
    assert session.loaded.loaded == ["x"]
    assert session.loaded.left_out[0].name == "f"
    assert "cannot be loaded by Python" in session.loaded.left_out[0].reason


async def test_the_workspace_goes_along_if_asked(native_host: Host, tmp_path: Path) -> None:
    for name in ("first", "second", "third"):
        (tmp_path / name).mkdir()
    (tmp_path / "first" / "data.txt").write_text("data")
    (tmp_path / "first" / "link").symlink_to("/etc/passwd")
    async with native_host.session(working_dir=tmp_path / "first") as session:
        with pytest.raises(InvalidInputError, match="is in the workspace"):
            await session.save(tmp_path / "first" / "s", workspace=True)
        report = await session.save(tmp_path / "s", workspace=True)
        assert report.files
        assert [one.name for one in report.left_out] == ["link"]
        await session.save(tmp_path / "no-files")
    async with await native_host.load(tmp_path / "s", workspace=True, working_dir=tmp_path / "second") as session:
        assert session.loaded is not None
        assert session.loaded.files
        assert (await session.execute("open('data.txt').read()")).return_value == "'data'"
    async with await native_host.load(tmp_path / "s", working_dir=tmp_path / "third"):
        assert "data.txt" not in os.listdir(tmp_path / "third")
    with pytest.raises(InvalidInputError, match="saved without its workspace"):
        await native_host.load(tmp_path / "no-files", workspace=True, working_dir=tmp_path / "third")


async def test_what_loading_replaces_is_in_the_trash(host: Host, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    (workspace / "d").mkdir(parents=True)
    (workspace / "d" / "a").write_text("saved")
    async with host.session(working_dir=workspace) as session:
        await session.save(tmp_path / "s", workspace=True)
        (workspace / "d" / "a").write_text("mine")
        (workspace / "d" / "b").write_text("stays")
        await session.load(tmp_path / "s")
        assert await session.trash() == []
        await session.load(tmp_path / "s", workspace=True)
        assert {path.name: path.read_text() for path in (workspace / "d").iterdir()} == {"a": "saved", "b": "stays"}
        (entry,) = await session.trash()
        assert (entry.operation, [(file.path, file.size) for file in entry.files]) == ("load", [("d/a", 4)])
        await session.restore_trash("d/a")
        assert (workspace / "d" / "a").read_text() == "mine"


@pytest.mark.slow
async def test_much_goes_in_pieces_whatever_a_value_may_have(host: Host, tmp_path: Path) -> None:
    async with host.session(limits=Limits(media=100_000, values=100_000)) as session:
        await session.execute("x = bytes(range(256)) * 10_000; y = bytearray(x)")
        assert (await session.save(tmp_path / "s")).size > 5_000_000
        await session.load(tmp_path / "s")
        assert (await session.execute("x == y == bytes(range(256)) * 10_000")).return_value == "True"
    async with host.session(limits=Limits(media=10)) as session:
        with pytest.raises(InvalidInputError, match="Limits"):
            await session.save(tmp_path / "s")


@pytest.mark.slow
async def test_a_kernel_without_cloudpickle_gets_it(session: Session, tmp_path: Path) -> None:
    hide = (
        "import sys\nclass Hidden:\n    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'cloudpickle': raise ModuleNotFoundError(name)\nsys.meta_path.insert(0, Hidden()); f = lambda: 5"
    )
    await session.execute(f"{hide}; sys.modules.pop('cloudpickle', None)")
    report = await session.save(tmp_path / "s")
    assert report.left_out == []
    await session.load(tmp_path / "s")
    assert (await session.execute("f()")).return_value == "5"


async def test_what_was_there_before_is_gone_when_another_session_is_loaded(session: Session, tmp_path: Path) -> None:
    """What is not a saved session changes nothing."""
    await session.execute("x = 1")
    await session.save(tmp_path / "s")
    await session.execute("y = 2")
    (tmp_path / "bad").write_text("bad")
    with pytest.raises(InvalidInputError, match="not a saved session"):
        await session.load(tmp_path / "bad")
    with pytest.raises(StoreError, match="No such file"):
        await session.load(tmp_path / "missing")
    assert [one.name for one in await session.variables()] == ["x", "y"]
    assert session.loaded is None
    await session.load(tmp_path / "s")
    assert [one.name for one in await session.variables()] == ["x"]
    assert len(session.history()) == 1


async def test_the_code_in_a_file_runs_in_the_sandbox_alone(native_host: Host, tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    planted = Path("/tmp", f"planted-{secrets.token_hex(8)}")
    evil = pickle.dumps({"x": Call(os.system, f"echo 1 > {planted}")})
    async with await native_host.load(write(tmp_path / "s", evil), working_dir=tmp_path / "workspace") as session:
        assert not planted.exists()
        assert (await session.execute(f"x, open({str(planted)!r}).read()")).return_value == r"(0, '1\n')"  # its own /tmp


async def test_code_in_a_file_that_misbehaves_is_told(session: Session, tmp_path: Path) -> None:
    def bad(function: Any, argument: object) -> Path:
        return write(tmp_path / "s", pickle.dumps({"x": Call(function, argument)}))

    loaded = await session.load(bad(int, "x"))
    assert loaded.left_out == [LeftOut("x", "ValueError: invalid literal for int() with base 10: 'x'")]
    with pytest.raises(KernelDiedError, match=r"was not loaded|died"):
        await session.load(bad(os._exit, 1))
    assert (await session.execute("1 + 1")).return_value == "2"
    with pytest.raises(ExecutionTimeoutError, match=r"was not loaded|died"):
        await session.load(bad(eval, "exec('while True: pass')"), timeout=0.2)
    assert (await session.execute("1 + 1")).return_value == "2"


@pytest.mark.parametrize("how", first_quick(["is cancelled", "dies"]))
async def test_a_load_that_fails_leaves_the_state_before_it(host: Host, tmp_path: Path, how: str) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "a").write_text("saved")
    (workspace / "new").write_text("new")
    async with host.session(working_dir=workspace) as session:
        archive = b"".join([piece async for piece in session.files.tar()])
        (workspace / "new").unlink()
        waits = f"import time; open({str(workspace / 'begun')!r}, 'w'); time.sleep(600)"
        call = Call(os._exit, 1) if how == "dies" else Call(eval, f"exec({waits!r})")
        bad = write(tmp_path / "bad", pickle.dumps({"x": call}), archive=archive)
        await session.execute("x = 1; open('a', 'w').write('mine')")
        await session.execute("x += 1; y = open('b', 'w').write('b')")
        loading = asyncio.create_task(session.load(bad, workspace=True))
        if how == "is cancelled":
            await eventually((workspace / "begun").exists)
            assert (workspace / "new").exists()
            loading.cancel()
        with pytest.raises(KernelDiedError if how == "dies" else asyncio.CancelledError):
            await loading
        (workspace / "begun").unlink(missing_ok=True)
        assert len(session.history()) == 2
        assert {path.name: path.read_text() for path in workspace.iterdir()} == {"a": "mine", "b": "b"}
        assert await session.trash() == []
        assert (await session.execute("x, y")).return_value == "(2, 1)"
        await session.undo(2)
        assert (await session.execute("x")).return_value == "1"
        assert {path.name: path.read_text() for path in workspace.iterdir()} == {"a": "mine"}


@pytest.mark.slow
async def test_a_load_that_fails_leaves_the_listeners_of_the_state_before_it(native_host: Host, tmp_path: Path) -> None:
    """And each state has the tools and the proxy of its own sandbox, also while it is loaded."""
    policy = Policy(network=Network(allow=("example.org",)))
    connect = r"""
import os, socket
def heard(port):
    with socket.create_connection(("127.0.0.1", int(port)), 30) as connection:
        connection.sendall(b"GET http://other.example/ HTTP/1.1\r\n\r\n")
        return connection.recv(8) == b"HTTP/1.1"
def all_heard():
    return heard(os.environ["CELLBLOCK_TOOL_PORT"]) and heard(os.environ["HTTP_PROXY"].rpartition(":")[2])
"""
    bad = write(tmp_path / "bad", pickle.dumps({"x": Call(os._exit, 1)}))
    asks = f"exec({connect + 'if not all_heard(): raise ValueError'!r}, {{}}) or 'heard'"
    good = write(tmp_path / "good", pickle.dumps({"x": Call(eval, asks)}))
    async with CodeExecutor(host=native_host, policy=policy) as executor:
        await executor.execute(connect + "x = 1")
        held = len(descriptors())
        for _ in range(2):
            with pytest.raises(KernelDiedError, match="The session is unchanged"):
                await executor.load(bad)
        assert ((await executor.execute("x, all_heard()")).text or "").endswith("(1, True)")
        assert len(descriptors()) <= held + 4  # of connections that are being closed
        await executor.load(good)
        assert ((await executor.execute(connect + "x, all_heard()")).text or "").endswith("('heard', True)")
        await executor.session.undo()
        assert ((await executor.execute(connect + "x, all_heard()")).text or "").endswith("('heard', True)")


@pytest.mark.slow
async def test_a_load_is_refused_where_no_second_kernel_has_room(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.execute("x = 1")
    await session.save(tmp_path / "s")
    monkeypatch.setattr(Checkpoints, "crowded", True)
    with pytest.raises(StateError, match=r"more than half of its memory limit: restart it first \(reset\)"):
        await session.load(tmp_path / "s")
    assert (await session.execute("x")).return_value == "1"
    await session.reset()
    await session.load(tmp_path / "s")
    assert (await session.execute("x")).return_value == "1"


async def test_a_session_that_cannot_be_loaded_is_closed(host: Host, tmp_path: Path) -> None:
    before = len(host._sessions)
    for pickled in (b"", pickle.dumps({"x": Call(os._exit, 1)})):
        path = write(tmp_path / "s", pickled) if pickled else tmp_path / "missing"
        with pytest.raises((KernelDiedError, StoreError)):
            await host.load(path)
    assert len(host._sessions) == before


async def test_a_save_that_takes_too_long_leaves_no_file(session: Session, tmp_path: Path) -> None:
    """Nor does one that is cancelled, and what was there before stays."""
    await session.execute("class Slow:\n    def __reduce__(self):\n        while True: pass\nx = Slow()")
    with pytest.raises(ExecutionTimeoutError, match="the session was not saved"):
        await session.save(tmp_path / "s", timeout=0.2)
    assert os.listdir(tmp_path) == []
    (tmp_path / "s").write_text("before")
    saving = asyncio.create_task(session.save(tmp_path / "s"))
    # It has no name, but it is open.
    await eventually(lambda: any(path.startswith(f"{tmp_path}/#") for path in descriptors().values()))
    saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving
    assert os.listdir(tmp_path) == ["s"]
    assert (tmp_path / "s").read_text() == "before"
    assert (await session.execute("2")).return_value == "2"


async def test_a_session_that_lies_is_not_saved(session: Session, tmp_path: Path) -> None:
    for lie in ("lambda n: None", "lambda n: get_ipython().display_pub.publish({MIME: b'.{}'})", "lie"):
        result = await session.execute(
            "import cellblock.worker.values.saved_values as s\nMIME = s.VALUE_MIME\n"
            "def lie(n):\n    for _ in range(2): get_ipython().display_pub.publish({MIME: b'+x'})\n"
            f"s.save = {lie}"
        )
        assert result.ok
        with pytest.raises(ProtocolError):
            await session.save(tmp_path / "s")
        assert os.listdir(tmp_path) == []


async def test_what_background_work_prints_meanwhile_is_for_the_next_cell(session: Session, tmp_path: Path) -> None:
    await session.execute("class Loud:\n    def __reduce__(self):\n        print('loud'); return Loud, ()\nx = Loud()")
    await session.save(tmp_path / "s")
    assert (await session.execute("1")).output == "loud\nloud\n"
