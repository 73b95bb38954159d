"""What an answer has for a model and for programs, and what each client makes of it."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from mcp_types import CallToolResult, TextContent

from cellblock.fronts.mcp_server import answers
from cellblock.fronts.mcp_server.client_limits import LIMITS
from cellblock.host import Host
from cellblock.model import CodeExecutionResult
from mcp_clients import connect, data, images, opened, png, run, show, text

HOSTILE = str(Path(__file__).parents[2] / "servers" / "hostile_server.py")


# -- the length of an output -----------------------------------------------------------------------------------------------


async def test_output_is_cut_at_any_length_and_says_so_and_what_went_wrong(native_host: Host, tmp_path: Path) -> None:
    """The first and the last lines are shown, facts have a limit as well, and errors come before output."""
    async with connect(native_host, tmp_path) as client:
        for most in (1, 7, 50):
            shown = text(await run(client, "print('x' * 100)", max_output_chars=most))
            start, note = shown.split("\n\n")
            assert start == "x" * most
            assert note.startswith(f"[Output truncated: exceeded {most} character limit] All of it: outputs/cell-")
        path = note.partition("All of it: ")[2]
        assert text(await run(client, f"len(open({path!r}).read())")) == "100"
        assert text(await run(client, "print('x' * 50)", max_output_chars=50)) == "x" * 50
        assert text(await run(client, "print('x' * 5001)")).startswith("x" * 5000 + "\n\n[Output truncated: exceeded 5000 ")
        assert (await client.call_tool("execute_ipython_cell", {"code": "1", "max_output_chars": 0})).is_error

        lines = text(await run(client, "for n in range(100): print('line', n)\n'the value'", max_output_chars=100))
        assert re.fullmatch(r"line 0\nline 1\n(line \d*\n)*.*\n\n\[Output truncated.*\n\nline 99\n'the value'", lines)
        assert len(lines.replace(re.findall(r"\n\n\[Output truncated.*\n\n", lines)[0], "")) == 100

        facts = await run(client, "globals().update({f'{n:0>200}': n for n in range(2_000)}); print('done')")
        assert text(facts) == "done"
        assert len(facts.model_dump_json()) < 50_000

        failed = await run(client, "print('x' * 1000)\nraise ValueError('no such planet')", max_output_chars=1)
        assert text(failed).startswith("Error: ValueError: no such planet\n")
        assert re.search(r"read outputs/cell-\w+-\w+\.txt", text(failed))
        died = await run(client, "import os\nprint('x' * 1000, flush=True)\nos._exit(3)", max_output_chars=1)
        assert text(died).startswith("The kernel died: ")


@pytest.mark.slow
async def test_output_is_shown_if_no_file_can_have_all_of_it(native_host: Host, tmp_path: Path) -> None:
    (tmp_path / "outputs").touch()
    async with connect(native_host, tmp_path) as client:
        shown = text(await run(client, "print('x' * 100)", max_output_chars=10))
        failed = text(await run(client, "print('x' * 1000); 1 / 0", max_output_chars=10))
        assert "ZeroDivisionError" in failed
        assert "outputs/" not in failed
    assert shown == "x" * 10 + "\n\n[Output truncated: exceeded 10 character limit]"


def test_a_file_that_does_not_have_all_of_an_output_is_not_called_so() -> None:
    result = CodeExecutionResult(text="x" * 100, truncated=True)
    assert answers._output(result, 1, "outputs/a.txt").endswith("character limit] Its beginning and end: outputs/a.txt")


def test_that_variables_are_lost_is_told_with_any_output() -> None:
    lost = CodeExecutionResult(text="x" * 100, recovery="restarted")
    news = "Variables and imports of earlier cells are lost: the kernel died and was replaced by a fresh one."
    assert answers._output(lost, 1, "").startswith(f"{news}\n\nx\n\n[Output truncated: ")
    assert answers._output(replace(lost, text=None), 1, "") == news
    assert answers._output(CodeExecutionResult(), 1, "") == "(no output)"


@pytest.mark.slow
async def test_a_cell_that_runs_on_names_its_id_at_any_length(native_host: Host, tmp_path: Path) -> None:
    async with connect(native_host, tmp_path, transport="http", token="t") as client:
        code = "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)"
        going = await run(client, code, wait=0.2, max_output_chars=1)
        number, session = data(going)["cell"], data(going)["session"]
        assert text(going).startswith(
            f"[session {session}]\nThe code is still running. Call this tool again with cell={number!r}"
        )
        stop = await client.call_tool("reset", {"session": session})
        assert text(stop) == f"[session {session}]\nThe kernel is fresh: variables and imports are lost."


# -- pictures --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_an_error_is_nothing_but_text_and_names_its_pictures(native_host: Host, tmp_path: Path) -> None:
    async with connect(native_host, tmp_path) as client:
        failed = await run(client, show(png()) + "\n1 / 0")
        assert (failed.is_error, images(failed), len(failed.content)) == (True, [], 1)
        note = re.search(r"\[1 picture is not shown here, but kept in (images/\w+\.png)\]$", text(failed))
        assert note is not None
        again = await run(client, f"import IPython.display as d\nd.Image({note[1]!r})")
        assert [base64.b64decode(image.data) for image in images(again)] == [png()]


@pytest.mark.slow
async def test_the_pictures_of_an_answer_have_a_limit_together(native_host: Host, tmp_path: Path) -> None:
    large = png(500)  # 250 kB
    async with connect(native_host, tmp_path) as client:
        shown = await run(
            client, f"picture = {large!r}\nimport IPython.display as d\nfor _ in range(4): d.display(d.Image(picture))"
        )
        assert len(images(shown)) == 2
        assert text(shown).endswith("\n[2 pictures are not shown here, but kept in images/]")
        assert len(shown.model_dump_json()) < 1024 * 1024
        many = await run(client, show(png(), 7))
        assert len(images(many)) == 5
        assert text(many).endswith("\n[2 pictures are not shown here, but kept in images/]")


# -- what clients make of it -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """What a client gives its model of an answer, as docs/mcp-server.md has it, with the sources.

    Attributes:
        structured: What structured content takes the place of: ``all``, ``texts`` or ``none``.
        pictures: Whether the model sees pictures.
        texts: How it sees texts: ``lines``, ``joint`` without a space, or ``json`` if there is no picture.
        errors: What it sees of an error: as of other answers (``same``), ``texts``, the ``first`` text, or all as ``json``.
        most: Characters of a text that it sees; None: no limit is known.
        whole: Characters of an answer that the client takes; None: no limit is known.
        name: What the client calls itself; empty: not known.
        waits: Seconds after which it gives up a call; None: later than any test, or not known.
    """

    structured: str = "none"
    pictures: bool = True
    texts: str = "lines"
    errors: str = "same"
    most: int | None = None
    whole: int | None = None
    name: str = ""
    waits: int | None = None


RULES = {
    "Claude Code": Rule(structured="all", errors="first", most=100_000),  # 25,000 tokens
    "Claude Desktop": Rule(whole=1_048_576, name="claude-ai", waits=60),
    "VS Code": Rule(structured="texts"),
    "Cursor": Rule(),
    "Codex": Rule(structured="all", texts="json", name="codex-mcp-client", waits=60),
    "Gemini CLI": Rule(errors="json", most=40_000, name="gemini-cli-mcp-client", waits=600),
    "Zed": Rule(pictures=False, texts="joint", errors="texts"),
    "Goose": Rule(most=200_000, name="goose", waits=300),
    "opencode": Rule(structured="all", name="opencode", waits=5),
    "mcpygen": Rule(structured="all", pictures=False, errors="texts"),
    "MCP Inspector": Rule(texts="json", errors="json"),
    "OpenAI Agents": Rule(name="mcp", waits=5),
    "Google ADK": Rule(pictures=False, texts="json", errors="json", name="google-adk", waits=5),
}


def seen(rule: Rule, result: CallToolResult) -> tuple[str, list[str]]:
    """Return the text and the pictures that a client's model sees."""
    answer = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert rule.whole is None or len(json.dumps(answer)) <= rule.whole
    texts = [block["text"] for block in answer["content"] if block["type"] == "text"]
    pictures = [block["data"] for block in answer["content"] if block["type"] == "image" and rule.pictures]
    structured = json.dumps(answer["structuredContent"]) if answer.get("structuredContent") else ""
    if result.is_error and rule.errors != "same":
        return {"texts": _put_together(rule, texts), "first": texts[0], "json": as_json(answer)}[rule.errors], []
    if structured and rule.structured == "all":
        return structured, []
    shown = structured if structured and rule.structured == "texts" else _put_together(rule, texts)
    if rule.texts == "json" and not pictures:
        shown = as_json(answer["content"])
    return shown[: rule.most], pictures


def test_structured_content_would_hide_the_text() -> None:
    both = CallToolResult(content=[TextContent(type="text", text="42")], structured_content={"status": "success"})
    blind = {name for name, rule in RULES.items() if "42" not in seen(rule, both)[0]}
    assert blind == {"Claude Code", "VS Code", "Codex", "opencode", "mcpygen"}


def _put_together(rule: Rule, texts: list[str]) -> str:
    return ("" if rule.texts == "joint" else "\n").join(texts)


def as_json(value: object) -> str:
    """Return a value as a model reads it that is shown JSON."""
    return json.dumps(value, ensure_ascii=False)


Calls = list[tuple[str, dict[str, Any], str, int]]
"""Tool, arguments, what the model must see, and how many pictures."""

CALLS: Calls = [
    ("execute_ipython_cell", {"code": "6 * 7"}, "42", 0),
    ("execute_ipython_cell", {"code": "print('hällo')"}, "hällo", 0),
    ("execute_ipython_cell", {"code": show(png())}, "<IPython.core.display.Image object>", 1),
    ("execute_ipython_cell", {"code": show(png()) + "\nprint('after')"}, "after", 1),
    ("execute_ipython_cell", {"code": "1 / 0"}, "ZeroDivisionError: division by zero", 0),
    ("execute_ipython_cell", {"code": show(png()) + "\n1 / 0"}, "1 picture is not shown here, but kept in images/", 0),
    ("execute_ipython_cell", {"code": "x = 1"}, "(no output)", 0),
    ("execute_ipython_cell", {"code": "print('x' * 200_000)"}, "[Output truncated: exceeded 5000 character limit]", 0),
    ("execute_ipython_cell", {"code": "while True: pass", "timeout": 0.2}, "Timeout: ", 0),
    ("execute_ipython_cell", {"code": "import time; time.sleep(60)", "wait": 0.1}, "Call this tool again with cell='", 0),
    ("execute_ipython_cell", {"code": ""}, "InvalidInputError: there is no code to run", 0),
    ("reset", {}, "The kernel is fresh", 0),
    ("execute_ipython_cell", {"code": "y = 1"}, "(no output)", 0),
    ("undo", {}, "The session has its state after cell 0. Undone:\n[1] y = 1", 0),
    ("undo", {"count": 9}, "there is no cell to undo", 0),
    ("search_tools", {"words": "nothing"}, "No tool was found", 0),
    (
        "register_mcp_server",
        {"server_name": "bad", "server_params": {"command": sys.executable, "args": [HOSTILE, "good"]}},
        "bad is registered. Its tools:\necho\n",
        0,
    ),
    ("register_mcp_server", {"server_name": "no", "server_params": {"command": "/none"}}, "McpServerError: ", 0),
    ("search_tools", {"words": "pid"}, "mcptools.bad.pid", 0),
    ("search_tools", {"tools": ["bad.pid"]}, "bad.pid(", 0),
    ("install_package", {"package_name": "/none/such.whl"}, "such.whl", 0),
]


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_every_client_shows_its_model_what_each_tool_answers(native_host: Host, tmp_path: Path, transport: str) -> None:
    async with connect(native_host, tmp_path, transport=transport, token="t") as client:
        session: dict[str, Any] = {}
        handle = ""
        if transport == "http":
            handle = data(await run(client, "0"))["session"]
            session = {"session": handle}
            await client.call_tool("reset", session)
        for tool, arguments, wanted, pictures in CALLS:
            result = await client.call_tool(tool, {**arguments, **session})
            assert isinstance(result, CallToolResult)
            for name, rule in RULES.items():
                shown, there = seen(rule, result)
                assert wanted in shown or as_json(wanted)[1:-1] in shown, (name, tool, arguments, shown)
                assert len(there) == (pictures if rule.pictures else 0), (name, tool, arguments)
                assert not handle or tool == "search_tools" or result.is_error or f"[session {handle}]" in shown
            assert {*result.model_dump(exclude_none=True, by_alias=True)} <= {"content", "isError", "_meta", "resultType"}


NAMED = {name: rule for name, rule in RULES.items() if rule.name}


def test_the_limits_of_the_named_clients_are_known() -> None:
    assert {rule.name: rule.waits for rule in NAMED.values()}.items() <= LIMITS.items()


@pytest.mark.slow
@pytest.mark.parametrize("client", [pytest.param(rule, id=name) for name, rule in NAMED.items() if (rule.waits or 60) < 60])
async def test_a_client_gets_an_answer_before_it_gives_up(native_host: Host, tmp_path: Path, client: Rule) -> None:
    assert client.waits is not None
    async with connect(native_host, tmp_path, name=client.name) as connected, asyncio.timeout(60):
        code = "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\n'done'"
        await opened(connected)
        began = time.monotonic()
        going = await run(connected, code, wait=600)
        assert client.waits / 2 < time.monotonic() - began < client.waits
        assert "Call this tool again with cell='" in text(going)
        (tmp_path / "go").touch()
        result = await connected.call_tool("execute_ipython_cell", {"cell": data(going)["cell"]})
        assert text(result) == "begun\n'done'"


def test_facts_for_programs_are_where_the_protocol_puts_them() -> None:
    # A prefix of labels with a slash, then a name. Prefixes whose second label is "mcp" are reserved, among others.
    assert re.fullmatch(r"[a-z][a-z0-9-]*[a-z0-9](\.[a-z][a-z0-9-]*[a-z0-9])*/[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?", answers.META)
    answer = answers.text("shown", status="reset").model_dump(by_alias=True, exclude_none=True)
    assert answer["_meta"] == {"cellblock/result": {"status": "reset"}}
    assert "_meta" not in answers.text("shown").model_dump(by_alias=True, exclude_none=True)
