"""`Client` and `AsyncClient` have the names of the Python API, and raise its errors."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx2
import pytest

import cellblock
from cellblock import (
    AccessError,
    AsyncClient,
    BusyError,
    Client,
    CodeExecutionResult,
    ConflictError,
    DaemonError,
    FilesError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    StateError,
)
from cellblock.fronts.client import transport
from daemons import own_daemon
from gateways import Gateway, own_gateway, token

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway for a daemon of its own."""
    with own_daemon(tmp_path_factory.mktemp("daemon")), own_gateway() as made:
        yield made


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    """A client that may do everything."""
    with Client(gateway.url, token("admin")) as client:
        yield client


def test_a_directory_can_be_a_path(client: Client, tmp_path: Path) -> None:
    made = client.get_or_create("path", working_dir=tmp_path)
    assert client.execute(made, "import os; os.getcwd()").return_value == repr(str(tmp_path))
    assert client.destroy(made)
    with pytest.raises(InvalidInputError, match=r"are not: .*object"):
        client.create(env={"a": object()})


def test_a_session_from_its_making_to_its_end(client: Client) -> None:
    made = client.get_or_create("life", tags={"a": "b"})
    assert (made.name, made.tags, made.status) == ("life", {"a": "b"}, "idle")
    assert client.get_or_create("life").kernel_id == made.kernel_id
    with pytest.raises(InvalidInputError, match="sandbox is the default, not False"):
        client.get_or_create("life", sandbox=False)
    with pytest.raises(ConflictError, match="life"):
        client.create("life")
    assert client.execute(made, "x = 2\nx + 2").return_value == "4"
    assert [record.kernel_id for record in client.list_kernels(refresh=True) if record.name == "life"] == [made.kernel_id]
    assert client.status(made).kernel_id == cellblock.status("life").kernel_id
    client.restart("life")
    assert not client.execute("life", "x").ok
    assert client.interrupt("life") is False
    assert client.destroy("life") is True
    assert client.destroy("life") is False
    with pytest.raises(NotFoundError, match="life"):
        client.status("life")


def test_results_are_those_of_the_python_api(client: Client) -> None:
    client.get_or_create("same", sandbox=False)
    code = "from IPython.display import display\ndisplay({'image/png': b'12'}, raw=True)\nprint('a')\n1"
    over_http, direct = client.execute("same", code), cellblock.execute("same", code)
    assert [item.data for item in over_http.outputs] == [item.data for item in direct.outputs]
    assert (over_http.text, over_http.return_value) == (direct.text, direct.return_value)
    assert client.execute("same", "echo $0", language="bash").ok
    slow = client.execute("same", "import time; time.sleep(60)", timeout=0.1)
    assert slow.status == "timeout"


def test_executions_are_submitted_followed_and_answered(client: Client) -> None:
    client.get_or_create("same", sandbox=False)
    record = client.submit("same", "print(input('? '))\n7", stdin=True, key="one")
    assert client.submit("same", "print(input('? '))\n7", stdin=True, key="one").id == record.id
    with pytest.raises(ConflictError, match="other code"):
        client.submit("same", "other", key="one")
    kinds = []
    for event in client.follow(record):
        kinds.append(event.kind)
        if event.kind == "input":
            assert client.answer(record, "me") is True
    assert (kinds[0], kinds[-1]) == ("begun", "result")
    assert [event.kind for event in client.follow(record, after=len(kinds) - 1)] == ["result"]
    assert client.wait(record).return_value == "7"
    assert client.lookup(record).state == "done"
    assert client.source(record) == "print(input('? '))\n7"
    assert record.id in [one.id for one in client.executions("same")]
    assert client.cancel(record) is False
    assert client.answer(record, "late") is False


def test_all_sessions_are_watched(client: Client) -> None:
    client.wipe()
    made = client.get_or_create("seen")
    with closing(client.watch()) as changes:
        first = next(changes)
        assert first.fresh
        assert [one.name for one in first.sessions] == ["seen"]
        client.submit(made, "print('begun'); import time; time.sleep(60)")
        said = next(one for change in changes for one in change.sessions if one.said)
        assert (said.code, said.said) == ("print('begun'); import time; time.sleep(60)", "begun\n")
    with closing(client.watch(first.position)) as changes:  # what was missed comes first
        change = next(changes)
        assert not change.fresh
        assert [one.status for one in change.sessions] == ["running"]
        client.destroy(made)
        assert next(change.ended for change in changes if change.ended) == [made.kernel_id]


@pytest.mark.parametrize("kind", [Client, AsyncClient])
async def test_watching_goes_on_where_the_connection_was_lost(kind: type[Client] | type[AsyncClient]) -> None:
    asked: list[str] = []
    whole = 'id: {0}\ndata: {{"position": "{0}", "ended": ["{0}"]}}\n\n'
    problem = 'event: problem\ndata: {"status": 503, "code": "daemon", "detail": "gone"}\n\n'
    answers = [
        whole.format("a-1") + 'id: \ndata: {"position": "", "ended": ["part"]}\n\n' + "id: a-2\ndata: {",  # cut off here
        problem,
        "",
        whole.format("a-3"),
        'event: problem\ndata: {"status": 403, "code": "access", "detail": "no more"}\n\n',
    ]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).partition(b" HTTP")[0].decode())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        writer.write(answers[len(asked) - 1].encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        seen: list[str] = []

        async def watch() -> None:
            async with AsyncClient(url) as client:
                async for change in client.watch():
                    seen.extend(change.ended)

        def watch_synchronously() -> None:
            with Client(url) as client:
                for change in client.watch():
                    seen.extend(change.ended)

        with pytest.raises(AccessError, match="no more"):
            await (watch() if kind is AsyncClient else asyncio.to_thread(watch_synchronously))
    assert seen == ["a-1", "part", "a-3"]
    assert asked == ["GET /events", *["GET /events?after=a-1"] * 3, "GET /events?after=a-3"]


def test_questions(client: Client) -> None:
    client.get_or_create("same", sandbox=False)
    client.execute("same", "value_of_mine = 1")
    assert "value_of_mine" in client.complete("same", "value_of_").matches
    assert "int" in str(client.inspect("same", "value_of_mine"))
    assert client.inspect("same", "nothing_of_mine") is None
    assert "value_of_mine = 1" in [entry.code for entry in client.history("same")]


def test_files(client: Client, tmp_path: Path) -> None:
    client.get_or_create("same", sandbox=False)
    assert client.write_file("same", "a/b c.txt", "ä").size == 2
    assert client.read_file("same", "a/b c.txt") == "ä".encode()
    assert client.execute("same", "open('a/b c.txt').read()").return_value == "'ä'"
    (tmp_path / "here").write_bytes(bytes(9_000_000))
    assert client.upload("same", tmp_path / "here", "a/there").size == 9_000_000
    client.download("same", "a/there", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == bytes(9_000_000)
    assert {info.path for info in client.list_files("same", "a")} == {"a/b c.txt", "a/there"}
    assert client.remove_file("same", "a", recursive=True) is True
    with pytest.raises(FilesError) as missing:
        client.download("same", "a/there", tmp_path / "none")
    assert missing.value.path == "a/there"
    with pytest.raises(FilesError):
        client.upload("same", tmp_path / "none")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "here"]


def test_what_is_wrong_is_the_same_error(gateway: Gateway, client: Client) -> None:
    with pytest.raises(InvalidInputError, match="'perl'"):
        client.execute("same", "1", language="perl")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="did you mean 'working_dir'"):
        client.get_or_create("wrong", working_dirr="x")
    for name in ("", ".", "..", None):
        with pytest.raises(InvalidInputError):
            client.status(name)  # type: ignore[arg-type]
    with Client(gateway.url, "cb_wrong") as nobody, pytest.raises(AccessError, match="not valid"):
        nobody.list_kernels()
    with Client(gateway.url, token("read")) as reader, pytest.raises(AccessError, match="'run'"):
        reader.get_or_create("mine")
    nobody.close()
    with pytest.raises(StateError, match="this client is closed"):
        nobody.list_kernels()
    with Client("http://127.0.0.1:1") as nowhere, pytest.raises(DaemonError, match=r"http://127\.0\.0\.1:1 cannot be reached"):
        nowhere.list_kernels()
    with pytest.raises(InvalidInputError, match="http"):
        Client("127.0.0.1:8080")


async def test_the_same_for_asyncio(gateway: Gateway, tmp_path: Path) -> None:
    async with AsyncClient(gateway.url, token("admin")) as client:
        kernel = await client.get_or_create("async", sandbox=False)
        assert (await client.execute(kernel, "1 + 1")).return_value == "2"
        record = await client.submit(kernel, "print(1)\n2")
        kinds = [event.kind async for event in client.follow(record)]
        assert (kinds[0], kinds[-1]) == ("begun", "result")
        assert (await client.wait(record)).return_value == "2"

        async def fix(_result: CodeExecutionResult, _attempt: int) -> str:
            return "5"

        assert (await client.execute_with_retry(kernel, "1 / 0", fix)).return_value == "5"
        (tmp_path / "here").write_bytes(b"1" * 3_000_000)
        await client.upload(kernel, tmp_path / "here")
        await client.download(kernel, "here", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == b"1" * 3_000_000
        assert await client.destroy(kernel) is True


async def test_many_calls_at_once_wait_for_their_turn(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncClient(gateway.url, token("admin")) as client:
        await client.get_or_create("crowded", sandbox=False)
        records = await asyncio.gather(*(client.status("crowded") for _ in range(600)))  # the gateway allows 512
        assert {record.name for record in records} == {"crowded"}
    monkeypatch.setattr(transport, "_MAX_CONNECTIONS", 1)
    monkeypatch.setattr(transport, "_PATIENCE", httpx2.Timeout(10.0, read=None, pool=0.1))
    async with AsyncClient(gateway.url, token("admin")) as client, AsyncClient(gateway.url, token("admin")) as other:
        running = asyncio.create_task(client.execute("crowded", "import time; time.sleep(100)"))
        while (await other.status("crowded")).status != "running":
            pass
        with pytest.raises(BusyError, match="this client has 1 requests in progress already"):
            await client.status("crowded")
        await other.destroy("crowded")
        await asyncio.wait([running])
        running.exception()


def test_a_connection_that_is_lost_leaves_open_what_must_not_be_done_twice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                connection.recv(65536)
                connection.close()

        hanging_up = threading.Thread(target=hang_up)
        hanging_up.start()
        with Client(f"http://127.0.0.1:{server.getsockname()[1]}", "token") as client:
            with pytest.raises(OutcomeUnknownError, match="not known whether the request was carried out"):
                client.undo("one")
            with pytest.raises(DaemonError, match="was lost") as lost:
                client.status("one")
        hanging_up.join()
    assert not isinstance(lost.value, OutcomeUnknownError)
