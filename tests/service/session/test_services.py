"""What a session may ask for outside of itself: the order of attempts, and that all of it goes through one broker."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from cellblock import ApprovalRequest, CodeExecutionResult, CodeExecutor, Host, Session
from cellblock.host.options import SessionOptions
from cellblock.model.decisions import CommandRequest
from cellblock.service.session.service_options import ServiceOptions
from cellblock.service.session.services import SessionServices, open_session
from cellblock.tools.approvals.rules import Rule, Rules
from processes import eventually
from tool_sessions import accept, recorded, reject, streamed


@pytest.fixture
async def make(native_host: Host, tmp_path: Path, nothing_left_behind: None) -> AsyncIterator[Any]:
    """What makes the services of a session that is not started yet."""
    made: list[tuple[Session, SessionServices]] = []

    def make(isolate: Any = None, **options: Any) -> SessionServices:
        asked = ServiceOptions(**({"approval_timeout": 0.1, "connect_timeout": 20} | options))
        session = SessionOptions(working_dir=tmp_path, isolate=isolate)
        made.append(open_session(native_host, session, asked, "of this test"))
        return made[-1][1]

    yield make
    for session, services in made:
        await session.close()
        await services.close()


async def test_without_a_session_that_runs_nobody_is_there_and_nothing_is_allowed(make: Any) -> None:
    services = make()
    assert await services.may_run(CommandRequest("shell", "true")) == "no decision arrived within 0.1 s"
    assert await services.may_reach("example.org", 443) is False
    assert [decision.by for decision in recorded(2)] == ["nobody", "nobody"]


async def test_what_is_decided_about_a_command_is_all_that_makes_it_what_it_is(make: Any) -> None:
    services = make(rules=Rules((Rule("allow", kind="shell", tool="shell_magic"),), default="deny"))
    request = CommandRequest("shell_magic", "ls", ("bash", "-e"), "/work", {"PATH": "/evil", "HOME": None})
    assert await services.may_run(request) is True
    stored = {"command": "ls", "program": ["bash", "-e"], "cwd": "/work", "environment": {"PATH": "/evil", "HOME": None}}
    assert (recorded(1)[0].arguments, recorded(1)[0].session) == (stored, "of this test")
    assert await services.may_run(CommandRequest("shell", "ls")) == "denied by the rule: default"
    # What no undo undoes.
    (outside,) = services._session.succession.outside(0)
    assert outside.startswith('shell {"command":"ls","cwd":"/work"')
    assert services._session.succession.outside(time.monotonic()) == []


async def test_rules_know_hosts(make: Any) -> None:
    rule = Rule("allow", kind="network", arguments={"host": "*.example.org", "port": 443})
    services = make(rules=Rules((rule,), default="deny"))
    assert await services.may_reach("a.example.org", 443) is True
    assert await services.may_reach("a.example.org", 80) is False
    assert await services.may_reach("a.example.org.evil", 443) is False


async def test_closing_withdraws_and_what_comes_after_is_not_kept_open(make: Any) -> None:
    services = make(approval_timeout=None)
    waiting = asyncio.create_task(services.may_reach("example.org", 443))
    await eventually(lambda: services.broker.pending)
    await services.close()
    assert await waiting is False
    assert recorded(1)[0].reason == "the session has ended"


async def test_the_token_is_only_where_others_could_reach_the_port(make: Any) -> None:
    def environment(**options: Any) -> dict[str, str]:
        given = make(**options)._session.wanted.setup.env
        return {name: value for name, value in given.items() if name.startswith("CELLBLOCK_")}

    assert {*environment(isolate="native")} == {"CELLBLOCK_TOOL_HOST"}
    assert {*environment(isolate="landlock")} == {"CELLBLOCK_TOOL_HOST", "CELLBLOCK_TOOL_TOKEN"}
    first, second = environment(isolate="none"), environment(isolate="none")
    assert len(first["CELLBLOCK_TOOL_TOKEN"]) >= 32
    assert first["CELLBLOCK_TOOL_TOKEN"] != second["CELLBLOCK_TOOL_TOKEN"]


# -- hosts that the policy does not name -------------------------------------------------------------------------------

GET = """
import os, urllib.request as u
os.environ |= {'no_proxy': '', 'NO_PROXY': ''}
opener = u.build_opener(u.ProxyHandler({'http': 'http://127.0.0.1:3128'}))
try: print(opener.open(URL, timeout=20).read().decode())
except Exception as error: print(error)
"""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A policy that asks about hosts."""
    path = tmp_path / "policy.json"
    network = {"allowedDomains": [], "deniedDomains": ["denied.test"], "ask": True}
    path.write_text(json.dumps({"filesystem": {"allowWrite": ["."]}, "network": network}))
    return path


@pytest.fixture
async def asking(native_host: Host, policy: Path, tmp_path: Path, nothing_left_behind: None) -> AsyncIterator[CodeExecutor]:
    """A sandboxed executor whose policy asks about hosts."""
    place = tmp_path / "workspace"
    place.mkdir()
    async with CodeExecutor(host=native_host, working_dir=place, sandbox_config=policy, images_dir=place) as executor:
        yield executor


@pytest.mark.slow
async def test_a_host_that_the_policy_does_not_name_is_asked_for(asking: CodeExecutor) -> None:
    seen = await streamed(asking, f"URL = 'http://nowhere.invalid/'\n{GET}", reject)
    assert [(request.kind, request.server_name, request.tool_name) for request in seen.asked] == [
        ("network", "network", "connect")
    ]
    assert seen.asked[0].tool_args == {"host": "nowhere.invalid", "port": 80}
    assert "403" in seen.text
    seen = await streamed(asking, f"URL = 'http://nowhere.invalid/'\n{GET}", accept)
    assert "502" in seen.text, "it was let through, and does not exist"
    assert [(decision.outcome, decision.kind) for decision in recorded(2)] == [("deny", "network"), ("allow", "network")]


@pytest.mark.slow
async def test_nobody_can_let_inner_addresses_through_nor_what_is_denied(asking: CodeExecutor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as inner:
        port = inner.getsockname()[1]
        seen = await streamed(asking, f"URL = 'http://127.0.0.1:{port}/'\n{GET}", accept)
        assert "403" in seen.text
        inner.setblocking(False)
        with pytest.raises(BlockingIOError):
            inner.accept()
    seen = await streamed(asking, f"URL = 'http://denied.test/'\n{GET}", accept)
    assert (seen.asked, "403" in seen.text) == ([], True)


@pytest.mark.slow
async def test_leaving_while_a_host_is_asked_for_withdraws(asking: CodeExecutor) -> None:
    async with aclosing(asking.stream(f"URL = 'http://nowhere.invalid/'\n{GET}")) as events:
        request = await anext(events)
        assert isinstance(request, ApprovalRequest)
    await asking.reset()
    await eventually(lambda: request.state == "withdrawn")
    assert isinstance(await asking.execute("1"), CodeExecutionResult)
