"""Every operation, by the link to the daemon and by the link to a cluster: the same answers from both."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from cellblock.errors import ConflictError, InvalidInputError, NotFoundError, UnknownCheckpointError
from cellblock.model.programs import ExecResult, ProcessOutput
from cellblock.operations import OPERATIONS
from cellblock.operations.approvals import Allowed, Decide, Pending, Precedents, Revoke
from cellblock.operations.base import Request
from cellblock.operations.checkpoints import (
    Adopt,
    Checkpoints,
    Diff,
    DropCheckpoint,
    Fork,
    MakeCheckpoint,
    Redo,
    Restore,
    RestoreTrash,
    Trash,
    Undo,
    VersionsOfFile,
)
from cellblock.operations.clones import CloneApply, CloneDiff, CloneFetch
from cellblock.operations.environments import CreateEnvironment, ListEnvironments, RemoveEnvironment, ShowEnvironment
from cellblock.operations.executions import Answer, Cancel, Executions, Follow, Lookup, Source, Submit
from cellblock.operations.files import (
    Install,
    ListFiles,
    MakeFolder,
    ReadFile,
    ReadPart,
    RemoveFile,
    RenameFile,
    StatFile,
    WatchFiles,
    WriteFile,
    WritePart,
)
from cellblock.operations.network import ChangeNetwork, ShowNetwork
from cellblock.operations.overview import Cells, Decisions, SearchSessions, Watch
from cellblock.operations.programs import (
    ConnectPort,
    Exec,
    Ports,
    Processes,
    ReadProcess,
    ResizeProcess,
    SignalProcess,
    Spawn,
    StopProcess,
    WritePort,
    WriteProcess,
)
from cellblock.operations.saving import ChangedVariables, Export, Load, Save, Variables
from cellblock.operations.secrets import ListSecrets, RefreshSecret, RemoveSecret, Requests
from cellblock.operations.sessions import (
    About,
    Complete,
    Create,
    Destroy,
    History,
    Inspect,
    Interrupt,
    List,
    Restart,
    Status,
    Wipe,
)
from cellblock.operations.tools import RegisterServer, SearchTools
from cellblock.service.daemon import control
from cellblock.service.daemon.link import DaemonLink, SessionLink
from cellblock.service.daemon.place import Place
from cluster.nodes import ready_hosts, until
from git_repositories import Repository
from tool_sessions import desk

pytestmark = [pytest.mark.slow, pytest.mark.sampled(1), pytest.mark.timeout(600)]

_numbers = itertools.count(1)
asked: set[type[Request[Any]]] = set()
"""The operations that the tests have asked for."""


class Link:
    """Notes what is asked."""

    def __init__(self, link: SessionLink) -> None:
        self.inner = link

    async def call(self, request: Request[Any], body: bytes = b"") -> Any:
        asked.add(type(request))
        return await self.inner.call(request, body)

    async def follow(self, request: Request[Any], body: bytes = b"") -> list[Any]:
        asked.add(type(request))
        async with aclosing(self.inner.follow(request, body)) as parts:
            return [part async for part in parts]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("daemon") / "state")
    control.start(place)
    yield place
    control.stop(place)


@pytest.fixture(params=["daemon", pytest.param("cluster", marks=pytest.mark.ray)])
async def link(request: pytest.FixtureRequest) -> AsyncIterator[Link]:
    if request.param == "daemon":
        made: SessionLink = DaemonLink(request.getfixturevalue("daemon"))
    else:
        hosts = await ready_hosts(request.getfixturevalue("nodes"))
        made = hosts.link
    yield Link(made)
    await made.close()


@pytest.fixture
async def session(link: Link, tmp_path: Path) -> AsyncIterator[str]:
    name = f"conforming-{next(_numbers)}"
    await link.call(Create(name, {"working_dir": str(tmp_path), "approve_shell_cmds": True}))
    yield name
    await link.call(Destroy(name))


async def run(link: Link, session: str, code: str) -> dict[str, Any]:
    result: dict[str, Any] = await link.call(Submit(session, wait=True, timeout=60_000), code.encode())
    return result


async def test_sessions_are_made_found_and_ended(link: Link, tmp_path: Path) -> None:
    options = {"working_dir": str(tmp_path)}
    made = await link.call(Create("once", options, {"a": "b"}))
    assert (made["name"], made["tags"], made["workspace"]) == ("once", {"a": "b"}, str(tmp_path))
    assert (await link.call(Create("once")))["kernel_id"] == made["kernel_id"]
    with pytest.raises(ConflictError, match="session 'once' exists already"):
        await link.call(Create("once", fresh=True))
    other = await link.call(Create("", options))
    listed = {one["name"]: one["kernel_id"] for one in await link.call(List(refresh=True))}
    assert listed["once"] == made["kernel_id"]
    assert listed[other["name"]] == other["kernel_id"]
    for key in ("once", made["kernel_id"]):
        assert (await link.call(Status(key)))["name"] == "once"
    about = await link.call(About())
    assert about["sessions"] >= 2
    assert about["failing"] == ""
    assert await link.call(Destroy("once"))
    assert not await link.call(Destroy("once"))
    with pytest.raises(NotFoundError, match="'once'"):
        await link.call(Status("once"))
    assert await link.call(Wipe()) == [other["kernel_id"]]
    assert await link.call(List()) == []


async def test_what_is_wrong_is_said_alike(link: Link, session: str) -> None:
    for request in (Status("nobody"), Submit("nobody", wait=True), Lookup("0" * 32)):
        with pytest.raises(NotFoundError):
            await link.call(request)
    with pytest.raises(InvalidInputError, match="no_such_option"):
        await link.call(Create("wrong", {"no_such_option": 1}))
    with pytest.raises(UnknownCheckpointError):
        await link.call(Restore(session, "nowhere"))
    assert not [one for one in await link.call(List()) if one["name"] == "wrong"]


async def test_code_runs_and_keeps_its_variables(link: Link, session: str) -> None:
    assert (await run(link, session, "x = 20"))["status"] == "success"
    assert (await run(link, session, "x + 1"))["text"] == "21"
    assert (await run(link, session, "1 / 0"))["error"]["ename"] == "ZeroDivisionError"
    stopped = await link.call(Submit(session, wait=True, timeout=300), b"while True: pass")
    assert (stopped["status"], stopped["recovery"]) == ("timeout", "interrupted")
    assert [entry["code"] for entry in await link.call(History(session))][:2] == ["x = 20", "x + 1"]
    assert [one["name"] for one in await link.call(Variables(session))] == ["x"]
    await link.call(ChangedVariables(session))
    await run(link, session, "del x; y = 1.5")
    assert await link.call(ChangedVariables(session)) == {"changed": {"y": "float"}, "deleted": ["x"]}
    restarted = await link.call(Restart(session))
    assert restarted["name"] == session
    assert (await run(link, session, "x"))["status"] == "error"


async def test_events_can_be_followed_from_any_number_on(link: Link, session: str) -> None:
    record = await link.call(Submit(session, live=True), b"for i in range(3): print(i)\n'end'")
    events = await link.follow(Follow(record["id"]))
    assert [event["seq"] for event in events] == [*range(1, len(events) + 1)]
    assert events[-1]["kind"] == "result"
    assert events[-1]["data"]["text"] == "0\n1\n2\n'end'"
    assert await link.follow(Follow(record["id"], 2)) == events[2:]
    at_once = await link.follow(Submit(session, follow=True, live=True), b"print(5)")
    assert [event["kind"] for event in at_once] == ["begun", "stream", "result"]


async def test_a_key_runs_code_once(link: Link, session: str) -> None:
    await run(link, session, "n = 0")
    first = await link.call(Submit(session, key="only", wait=True), b"n += 1; n")
    again = await link.call(Submit(session, key="only", wait=True), b"n += 1; n")
    assert (first["text"], again["text"], (await run(link, session, "n"))["text"]) == ("1", "1", "1")
    with pytest.raises(ConflictError):
        await link.call(Submit(session, key="only", wait=True), b"other code")
    record = await link.call(Lookup(session=session, key="only"))
    assert record["state"] == "done"
    assert (await link.call(Lookup(record["id"])))["id"] == record["id"]
    assert await link.call(Source(record["id"])) == "n += 1; n"
    assert record["id"] in [one["id"] for one in await link.call(Executions(session))]


async def test_running_code_is_stopped_and_asked(link: Link, session: str) -> None:
    record = await link.call(Submit(session, stdin=True, live=True), b"import time\nprint(input('name?'))\ntime.sleep(60)")
    await until(lambda: _kinds(link, record["id"], {"input"}))
    assert await link.call(Answer(record["id"]), b"Ada")
    await until(lambda: _kinds(link, record["id"], {"stream"}))
    assert await link.call(Interrupt(session))
    assert (await link.call(Lookup(record["id"])))["state"] == "done"
    queued = await link.call(Submit(session), b"time.sleep(60)")
    assert await link.call(Cancel(queued["id"]))
    assert (await run(link, session, "1"))["text"] == "1"


async def _kinds(link: Link, execution: str, wanted: set[str]) -> bool:
    """Whether an execution has had events of some kinds."""
    asked.add(Follow)
    async with aclosing(link.inner.follow(Follow(execution, answers=True))) as events:
        async for event in events:
            wanted = wanted - {event["kind"]}
            if not wanted:
                return True
    return False


async def test_editors_get_answers(link: Link, session: str) -> None:
    await run(link, session, "number = 5")
    assert "number" in (await link.call(Complete(session), b"numb"))["matches"]
    assert "int" in await link.call(Inspect(session), b"number")


async def test_files_are_written_and_read(link: Link, session: str) -> None:
    written = await link.call(WriteFile(session, "a/b.txt"), b"one")
    assert (written["path"], written["size"]) == ("a/b.txt", 3)
    assert await link.call(WritePart(session, "c.bin", "u"), b"12") is None
    assert (await link.call(WritePart(session, "c.bin", "u", more=False), b"3"))["size"] == 3
    assert await link.call(ReadFile(session, "a/b.txt")) == b"one"
    assert (await link.call(ReadPart(session, "c.bin", 1, 5)))["data"] == b"23"
    assert [info["path"] for info in await link.call(ListFiles(session))] == ["a", "c.bin"]
    assert (await link.call(StatFile(session, "c.bin")))["size"] == 3
    begun = asyncio.Event()
    watched = asyncio.ensure_future(_first_change(link, session, begun))
    await asyncio.wait_for(begun.wait(), 60)
    await link.call(MakeFolder(session, "d"))
    await link.call(RenameFile(session, "a/b.txt", "d/b.txt"))
    assert await asyncio.wait_for(watched, 60)
    assert await link.call(RemoveFile(session, "a", recursive=True))
    assert await link.call(RemoveFile(session, "d", recursive=True))
    assert (await run(link, session, "import os; os.listdir()"))["text"] == "['c.bin']"


async def _first_change(link: Link, session: str, begun: asyncio.Event) -> Any:
    """Return the first change in a folder, after the word that it is watched."""
    async with aclosing(link.inner.follow(WatchFiles(session, "."))) as changes:
        await anext(changes)
        asked.add(WatchFiles)
        begun.set()
        return await anext(changes)


async def test_states_come_back(link: Link, session: str) -> None:
    await run(link, session, "x = [1]; open('f', 'w').write('1')")
    made = await link.call(MakeCheckpoint(session, "one", "copy"))
    await run(link, session, "x.append(2)")
    assert (await link.call(VersionsOfFile(session, "one", "f")))["before"]["text"] == "1"
    assert made["id"] in [one["id"] for one in await link.call(Checkpoints(session))]
    assert "x" in str(await link.call(Diff(session, "one")))
    assert [cell["code"] for cell in (await link.call(Undo(session)))["cells"]] == ["x.append(2)"]
    assert [cell["code"] for cell in (await link.call(Redo(session)))["cells"]] == ["x.append(2)"]
    assert (await run(link, session, "open('g', 'w').write('2'); x"))["text"] == "[1, 2]"
    await link.call(Undo(session))
    assert "g" in str(await link.call(Trash(session)))
    assert "g" in str(await link.call(RestoreTrash(session, "g")))
    await run(link, session, "x.append(3)")
    await link.call(Restore(session, "one"))
    assert (await run(link, session, "x"))["text"] == "[1]"
    assert await link.call(DropCheckpoint(session, "one"))


async def test_commits_of_a_clone_arrive(link: Link, tmp_path: Path) -> None:
    project, session = Repository(tmp_path / "project"), f"conforming-{next(_numbers)}"
    project.commit(a="one")
    await link.call(Create(session, {"working_dir": str(project.path), "workspace": "clone"}))
    assert (await run(link, session, "!echo two > a && git commit -qam two && echo x > b"))["status"] == "success"
    assert (await link.call(CloneDiff(session)))["files"] == ["a", "b"]
    assert (await link.call(CloneFetch(session)))["ref"] == f"refs/remotes/cellblock/{session}"
    assert (await link.call(CloneApply(session)))["files"] == ["a", "b"]
    assert (project.path / "a").read_text() == "two\n"
    with pytest.raises(ConflictError, match="do not fit the working copy"):
        await link.call(CloneApply(session))
    await link.call(Destroy(session))


async def test_branches_are_made_and_adopted(link: Link, session: str) -> None:
    await run(link, session, "x = [1]")
    names = (f"{session}-a", f"{session}-b")
    made = await link.call(Fork(session, names, files="copy"))
    assert [one["name"] for one in made] == [*names]
    for name in names:
        await run(link, name, f"x.append({name!r})")
    with pytest.raises(ConflictError, match="exists already"):
        await link.call(Fork(session, (names[0],)))
    await link.call(Adopt(session, names[1]))
    assert (await run(link, session, "x"))["text"] == f"[1, {names[1]!r}]"
    assert await link.call(Destroy(names[0]))
    assert not await link.call(Destroy(names[1]))


async def test_programs_run_beside_the_kernel(link: Link, session: str) -> None:
    done = await link.call(Exec(session, ("sh", "-c", "cat; echo err >&2; exit 3")), b"in")
    ended = ExecResult.from_dict(done)
    assert (ended.exit_code, ended.stdout, ended.stderr) == (3, b"in", b"err\n")
    process = (await link.call(Spawn(session, ("cat",), stdin=True, rows=10, columns=20)))["id"]
    assert await link.call(WriteProcess(session, process), b"hello\n")
    await until(lambda: _prints(link, session, process, b"hello"))
    assert await link.call(ResizeProcess(session, process, 20, 40))
    assert process in [one["id"] for one in await link.call(Processes(session))]
    await link.call(SignalProcess(session, process, 15))
    assert (await link.call(StopProcess(session, process)))["signal"] == 15


async def _prints(link: Link, session: str, process: str, text: bytes) -> bool:
    output = ProcessOutput.from_dict(await link.call(ReadProcess(session, process, wait=1000)))
    return text in b"".join(piece.data for piece in output.pieces)


async def test_calls_wait_for_decisions(link: Link, session: str) -> None:
    record = await link.call(Submit(session), b"!echo done")
    (pending,) = await until(lambda: link.call(Pending(session)))
    assert pending["execution"] == record["id"]
    assert pending["id"] in [one["id"] for one in await link.call(Pending())]
    assert await link.call(Precedents(pending["id"])) == []
    assert await link.call(Decide((pending["id"], "unknown"), allow=True, always="call")) == [pending["id"]]
    await until(lambda: _is_done(link, record["id"]))
    assert (await link.follow(Follow(record["id"])))[-1]["data"]["output"] == "done\n"
    (allowed,) = await link.call(Allowed(session))
    assert await link.call(Revoke((allowed["id"],))) == [allowed["id"]]
    assert await link.call(Allowed()) == []


async def test_the_network_of_a_running_session_changes(link: Link, tmp_path: Path) -> None:
    name = f"network-{tmp_path.name}"
    await link.call(Create(name, {"working_dir": str(tmp_path), "allow_hosts": ["a.invalid"]}))
    assert (await link.call(ShowNetwork(name)))["allow"] == ["a.invalid"]
    changed = await link.call(ChangeNetwork(name, deny=("b.invalid",), expect=0))
    assert (changed["deny"], changed["revision"]) == (["b.invalid"], 1)
    await link.call(Destroy(name))


async def test_a_server_is_listed_and_reached(link: Link, session: str) -> None:
    code = "import socket; s = socket.create_server(('127.0.0.1', 8501))"
    assert (await run(link, session, code))["status"] == "success"
    assert await link.call(Ports(session)) == [8501]
    asked.add(ConnectPort)
    async with aclosing(link.inner.follow(ConnectPort(session, 8501))) as parts:
        connection = bytes(await anext(parts)).decode()
        assert await link.call(WritePort(session, connection, end=True), b"hello")
        answer = "client, _ = s.accept(); client.sendall(client.makefile('rb').read() * 2); client.close()"
        assert (await run(link, session, answer))["status"] == "success"
        assert b"".join([part async for part in parts]) == b"hellohello"
    assert not await link.call(WritePort(session, connection), b"late")


async def test_tools_are_registered_found_and_called(link: Link, session: str, tmp_path: Path) -> None:
    registered = await link.call(RegisterServer(session, "desk", {**desk(tmp_path / "notes"), "env": {}}))
    assert {"add", "note"} <= {*registered["tools"]}
    assert any(line.startswith("desk.add(") for line in registered["signatures"])
    assert "mcptools.desk.add" in await link.call(SearchTools(session, "add"))
    assert "desk.add(a: int" in await link.call(SearchTools(session, tools=("desk.add",)))
    assert "class Params" in await link.call(SearchTools(session, module="desk.add"))
    code = b"from mcptools.desk.add import Params, run\nrun(Params(a=40, b=2))"
    record = await link.call(Submit(session), code)
    (pending,) = await until(lambda: link.call(Pending(session)))
    assert (pending["server"], pending["tool"]) == ("desk", "add")
    await link.call(Decide((pending["id"],), allow=True))
    await until(lambda: _is_done(link, record["id"]))
    assert "42" in (await link.follow(Follow(record["id"])))[-1]["data"]["text"]
    with pytest.raises(InvalidInputError, match="command"):
        await link.call(RegisterServer(session, "desk", {}))


async def _is_done(link: Link, execution: str) -> bool:
    return bool((await link.call(Lookup(execution)))["state"] == "done")


async def test_sessions_are_saved_and_loaded(link: Link, session: str, tmp_path: Path) -> None:
    await run(link, session, "x = {'a': 1}")
    path = str(tmp_path / "saved.cellblock")
    assert (await link.call(Save(session, path)))["saved"] == ["x"]
    await run(link, session, "del x")
    await link.call(Load(session, path))
    assert (await run(link, session, "x"))["text"] == "{'a': 1}"
    assert await link.call(Export(session, str(tmp_path / "cells.py")))
    assert "x = {'a': 1}" in (tmp_path / "cells.py").read_text()


async def test_packages_are_installed(link: Link, session: str) -> None:
    result = await link.call(Install(session, ("--version-that-is-none",), 60_000))
    assert result["status"] == "error"


async def test_large_answers_arrive_whole(link: Link, session: str) -> None:
    data = bytes(range(256)) * 40_000
    await link.call(WriteFile(session, "large"), data)
    assert await link.call(ReadFile(session, "large")) == data
    record = await link.call(Submit(session, live=True), b"for i in range(3000): print('x' * 100)")
    events = await link.follow(Follow(record["id"]))
    assert events[-1]["data"]["output"].count("x" * 100) + str(events).count("truncated") > 0
    assert [event["seq"] for event in events] == [*range(1, len(events) + 1)]


async def test_many_at_once(link: Link, session: str) -> None:
    results = await asyncio.gather(*(run(link, session, f"{number} * 2") for number in range(30)))
    assert [result["text"] for result in results] == [str(number * 2) for number in range(30)]


async def test_what_happened_in_a_session_and_what_happens_in_all(link: Link, session: str) -> None:
    await run(link, session, "6 * 7")
    cells = await link.call(Cells(session))
    assert [cell["code"] for cell in cells] == ["6 * 7"]
    assert await link.call(Decisions(session)) == []
    assert await link.call(Requests(session)) == []
    assert await link.call(ListSecrets(session)) == []
    for request in (RefreshSecret(session, "KEY"), RemoveSecret(session, "KEY")):
        with pytest.raises(InvalidInputError, match="has no secret 'KEY'"):
            await link.call(request)
    assert [one["code"] for one in await link.call(SearchSessions(f"{session} 7")) if one["name"] == session] == ["6 * 7"]
    asked.add(Watch)
    async with aclosing(link.inner.follow(Watch())) as changes:
        told = await anext(changes)
        assert told["fresh"]
        while session not in str(told):
            told = await anext(changes)


async def test_environments(link: Link) -> None:
    name = f"environment-{next(_numbers)}"
    made = await link.call(CreateEnvironment(name, {"packages": []}))
    assert (made["name"], made["packages"]) == (name, [])
    again = [await link.call(CreateEnvironment(name, {"packages": []})), await link.call(ShowEnvironment(name))]
    assert [one["lock"] for one in again] == [made["lock"]] * 2
    assert name in [one["name"] for one in await link.call(ListEnvironments())]
    assert await link.call(RemoveEnvironment(name)) == made["lock"]
    with pytest.raises(NotFoundError, match=f"there is no environment {name!r}"):
        await link.call(ShowEnvironment(name))


@pytest.mark.ray  # then, all of these tests run in one process
def test_every_operation_was_asked_for() -> None:
    """It runs last. Not those by which connections begin and daemons end, and what only a director asks."""
    assert {kind.op for kind in {*OPERATIONS.values()} - asked} == {
        "hello",
        "end",
        "census",
        "give away",
        "given away",
        "take over",
    }
