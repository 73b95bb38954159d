"""The tools of the MCP server."""

from __future__ import annotations

import functools
import inspect
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.stdio import stdio_server
from mcp_types import CallToolResult, InputRequiredResult, ToolAnnotations
from pydantic import BeforeValidator, Field, ValidationError

from cellblock.common.version import __version__
from cellblock.errors import CellblockError, InvalidInputError, did_you_mean, shown
from cellblock.fronts.mcp_server import answers, asking, cells, client_limits, program_runs
from cellblock.fronts.mcp_server.client_input import Input, take_standard_input
from cellblock.fronts.mcp_server.clients import Clients
from cellblock.model.decisions import CommandRequest
from cellblock.operations.checkpoints import Redo, Undo
from cellblock.operations.data import milliseconds
from cellblock.operations.files import Install
from cellblock.operations.sessions import Restart
from cellblock.operations.tools import RegisterServer, SearchTools

INSTRUCTIONS = """\
Runs Python in a sandboxed IPython kernel that keeps its variables from call to call. Work in small steps, and look at each \
result. The working directory is the workspace; what you write elsewhere is lost. To use the tools of an MCP server, register \
it once, find tools with search_tools, and call them from code: \
`from mcptools.SERVER.TOOL import Params, run; print(run(Params(...)))`. \
Filter and combine in code what tools return, and print only what you need."""

_LISTED = 5000
"""Characters of the list of a server's tools. `search_tools` shows the rest."""

_WRONG = 5
"""Wrong arguments that an answer describes."""

_ALIVE = ("success", "error")
"""How cells end that leave their kernel alive."""

_INSTALLING = 600.0
"""Seconds that pip may take."""

_Ctx = Context[Any, Any]
_Answer = CallToolResult | InputRequiredResult

_LIST = BeforeValidator(lambda given: [given] if isinstance(given, str) else given)
"""Accepts one name in place of a list of one, as models write it."""
_SESSION = Annotated[str, Field(description="handle of your session, from an earlier answer; leave it out for a new one")]


class Tools:
    """The tools that clients can call. Each takes the handle of a session, which is empty over stdio."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._options = clients.options

    async def execute_ipython_cell(
        self,
        ctx: _Ctx,
        code: Annotated[
            str, Field(description="Python as IPython takes it: magics, !commands and top-level await included")
        ] = "",
        timeout: Annotated[float, Field(gt=0, le=86400, description="seconds after which the code is stopped")] = 120,
        max_output_chars: Annotated[int, Field(ge=1, le=100_000, description="longer output is cut")] = 5000,
        wait: Annotated[
            float | None, Field(gt=0, description="seconds to wait; code that runs on can be looked at again with cell")
        ] = None,
        cell: Annotated[str, Field(description="id of a cell that still runs, to wait for it instead of running code")] = "",
        session: _SESSION = "",
    ) -> _Answer:
        """Run Python code in the kernel and return its output, the value of its last expression, and its plots.

        Variables, imports and definitions stay for later calls. Tools of registered MCP servers are imported from
        mcptools.SERVER.TOOL. A timeout stops the code and keeps the variables.
        """
        began, longest = time.monotonic(), client_limits.longest_wait(self._options, ctx)
        followed = await asking.resumed(self._clients, cell, ctx)
        if followed is None:
            if not code.strip():
                raise InvalidInputError("there is no code to run: give code, or the cell that you want to look at")
            record = await self._clients.session(session, longest)
            followed = await cells.begin(self._clients, record, code, timeout)
        try:
            left = (longest if wait is None else min(wait, longest)) - (time.monotonic() - began)
            questions = await asking.run(self._clients, followed, left, ctx)
            if questions is not None:
                return questions
            handle = self._handle(followed.session.name)
            if not followed.ended:
                return answers.with_notes(
                    answers.running(followed.id, followed.said, max_output_chars, handle), followed.notes
                )
            result = await followed.result()
            as_files = client_limits.keeps_pictures(self._options, ctx)
            said = await answers.cell(
                self._clients, followed.session, followed.id, result, max_output_chars, handle, as_files=as_files
            )
            servers = await self._clients.place.note_servers(followed.session) if result.status in _ALIVE else []
            return answers.with_notes(said, [*followed.notes, *servers])
        finally:
            await followed.close()

    async def register_mcp_server(
        self,
        ctx: _Ctx,
        server_name: Annotated[str, Field(description="a Python identifier, such as github")],
        server_params: Annotated[
            dict[str, Any],
            Field(description='{"command", "args", "env"} of a program, or {"url", "headers"}; ${NAME} is replaced from .env'),
        ],
        session: _SESSION = "",
    ) -> _Answer:
        """Generate a Python API for the tools of an MCP server, as mcptools.SERVER.TOOL with Params and run.

        Once is enough: it stays registered.
        """
        # Imported here: every start of the server would wait for it, and few need it.
        from cellblock.fronts.mcp_server import registering

        # First: rules are about our names of the parameters.
        given, ignored = registering.converted(server_name, server_params)
        if (question := await registering.decide_registration(self._clients, server_name, given, ctx)) is not None:
            return question
        record = await self._clients.session(session)
        params = registering.placed(self._options, server_name, given)
        handle = self._handle(record.name)

        async def register() -> CallToolResult:
            registered = await self._clients.ask(RegisterServer(record.kernel_id, server_name, params))
            shown = _registered(server_name, registered, ignored)
            return answers.text(shown, handle, server=server_name, tools=registered["tools"])

        key = ("register", record.kernel_id, server_name, json.dumps(params, sort_keys=True))
        return await self._in_time(key, register, "register_mcp_server", ctx, handle)

    async def search_tools(
        self,
        words: Annotated[str, Field(description="what to look for; nothing lists all tools")] = "",
        tools: Annotated[list[str] | None, _LIST, Field(description="modules, or servers, whose signatures to see")] = None,
        module: Annotated[str, Field(description="a module whose whole interface to see")] = "",
        session: _SESSION = "",
    ) -> _Answer:
        """Find tools of registered MCP servers, and saved actions.

        Words show the best matches with signatures; tools, the signatures of modules; module, one interface in full.
        """
        record = await self._clients.session(session)
        found = await self._clients.ask(SearchTools(record.kernel_id, words, tuple(tools or ()), module))
        return answers.text(found, "" if session else self._handle(record.name))

    async def install_package(
        self,
        ctx: _Ctx,
        package_name: Annotated[str, Field(description="such as numpy>=2, or git+https://...")],
        session: _SESSION = "",
    ) -> _Answer:
        """Install a Python package with pip, for this session."""
        record = await self._clients.session(session)
        handle = self._handle(record.name)

        async def install() -> CallToolResult:
            result = await self._clients.ask(Install(record.kernel_id, (package_name,), milliseconds(_INSTALLING)))
            shown = f"{package_name} is installed." if result.ok else result.for_model(5000)
            return answers.text(shown, handle, error=not result.ok, status=result.status)

        return await self._in_time(("install", record.kernel_id, package_name), install, "install_package", ctx, handle)

    async def reset(self, session: _SESSION = "") -> _Answer:
        """Start a fresh kernel, without variables and imports. Files, installed packages and registered servers stay."""
        record = await self._clients.session(session)
        await self._clients.ask(Restart(record.kernel_id))
        shown = "The kernel is fresh: variables and imports are lost."
        return answers.text(shown, self._handle(record.name), status="reset")

    async def undo(
        self,
        count: Annotated[int, Field(ge=1, le=1000, description="how many cells")] = 1,
        partial: Annotated[bool, Field(description="without an exact undo, undo more cells and skip files")] = False,
        session: _SESSION = "",
    ) -> _Answer:
        """Undo the last cells: variables, imports and files are exactly as before. Tool calls are not undone."""
        record = await self._clients.session(session)
        undone = await self._clients.ask(Undo(record.kernel_id, count, partial))
        return answers.undone(undone, self._handle(record.name))

    async def redo(self, session: _SESSION = "") -> _Answer:
        """Reverse the last undo. It works until the next cell begins."""
        record = await self._clients.session(session)
        redone = await self._clients.ask(Redo(record.kernel_id))
        return answers.undone(redone, self._handle(record.name), "Redone")

    async def run_program(
        self,
        ctx: _Ctx,
        command: Annotated[str, Field(min_length=1, description="a command for sh -c")],
        cwd: Annotated[str, Field(description="its directory; the workspace by default")] = "",
        timeout: Annotated[float, Field(gt=0, le=86400, description="seconds after which it is stopped")] = 120,
        max_output_chars: Annotated[int, Field(ge=1, le=100_000, description="longer output is cut")] = 5000,
        session: _SESSION = "",
    ) -> _Answer:
        """Run a shell command beside the kernel, also while code runs, and return its output.

        It sees the same files and network as code, and none of its variables. undo does not undo it.
        """
        record = await self._clients.session(session or asking.state(ctx).get("session", ""))
        request = CommandRequest("shell", command, cwd=str(self._clients.folder(record) / cwd))
        if (question := await program_runs.decide_command(self._clients, record, request, ctx)) is not None:
            return question
        handle = self._handle(record.name)

        async def run() -> CallToolResult:
            return await program_runs.run(self._clients, record, request, timeout, max_output_chars, ctx, handle)

        key = ("run", record.kernel_id, command, cwd, timeout, max_output_chars)
        return await self._in_time(key, run, "run_program", ctx, handle)

    async def _in_time(
        self, key: Hashable, begin: Callable[[], Coroutine[Any, Any, CallToolResult]], tool: str, ctx: _Ctx, handle: str
    ) -> CallToolResult:
        """Return the result of some work, or an answer that it continues, before the client gives up."""
        seconds = client_limits.longest_wait(self._options, ctx)
        if (answer := await self._clients.work.answer(key, begin, seconds)) is not None:
            return answer
        shown = f"Still running. Call {tool} again with the same arguments to wait for it."
        return answers.text(shown, handle, status="running")

    def _handle(self, name: str) -> str:
        return name if self._options.transport == "http" else ""


def _registered(server: str, registered: Mapping[str, Any], ignored: Sequence[str]) -> str:
    """Return the answer of `register_mcp_server`: a line for each tool, an example, signatures if they are few, and notes."""
    names, left_out = registered["tools"], registered.get("left_out", {})
    notes = [f"Ignored in server_params: {', '.join(ignored)}"] if ignored else []
    notes += [f"Left out: {tool}: {why}" for tool, why in [*left_out.items()][:_WRONG]]
    notes += [f"The server says:\n{registered['instructions']}"] if registered.get("instructions") else []
    if not names:
        return "\n\n".join([f"{server} is registered. It has no tools.", *notes])
    shown = [f"{server} is registered. Its tools:", *names, "", f"from mcptools.{server}.{names[0]} import Params, run"]
    known = "\n".join(shown)
    whole = "\n".join([known, "", *registered["signatures"]])
    if len(whole) > _LISTED:
        whole = known[:_LISTED] + "\n… search_tools shows all of them, and signatures"
    return "\n\n".join([whole, *notes])


_ANNOTATIONS = {
    "execute_ipython_cell": ToolAnnotations(title="Run Python", destructive_hint=True, open_world_hint=True),
    "register_mcp_server": ToolAnnotations(title="Register an MCP server", destructive_hint=False, idempotent_hint=True),
    "search_tools": ToolAnnotations(title="Find tools", read_only_hint=True),
    "install_package": ToolAnnotations(title="Install a package", destructive_hint=False, idempotent_hint=True),
    "reset": ToolAnnotations(title="Start afresh", destructive_hint=True, idempotent_hint=True),
    "undo": ToolAnnotations(title="Undo cells", destructive_hint=True, open_world_hint=False),
    "redo": ToolAnnotations(title="Reverse the last undo", destructive_hint=False, open_world_hint=False),
    "run_program": ToolAnnotations(title="Run a program", destructive_hint=True, open_world_hint=True),
}


class FrontServer(MCPServer[None]):
    """A server that refuses unknown arguments. The SDK ignores them, so a misspelt timeout would have no effect."""

    async def run_stdio_async(self) -> None:
        """Serve the client on standard input and output."""
        given = Input(take_standard_input())
        async with stdio_server(stdin=given) as (messages, given.answers):  # type: ignore[arg-type]  # it reads lines only
            await self._lowlevel_server.run(messages, given.answers, self._lowlevel_server.create_initialization_options())

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[None, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        for tool in await self.list_tools():
            known = tool.input_schema.get("properties", {})
            if tool.name == name and (unknown := [one for one in arguments if one not in known]):
                hint = did_you_mean(unknown[0], known) or f"; it has {', '.join(known)}"
                why = f"nothing was done: {name} has no argument {shown(unknown[0])}{hint}"
                return answers.text(f"InvalidInputError: {why}", error=True)
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            return answers.text(f"InvalidInputError: nothing was done: {_wrong(name, error.__cause__)}", error=True)


def _wrong(name: str, error: ValidationError) -> str:
    """Describe wrong arguments, without pydantic's names and URL."""
    wrong = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:_WRONG]]
    return f"in the arguments of {name}: {'; '.join(wrong)}"


def build(clients: Clients) -> FrontServer:
    """Create an MCP server for these clients. The caller closes their sessions."""
    server = FrontServer("cellblock", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING")
    tools = Tools(clients)
    for name, notes in _ANNOTATIONS.items():
        if name == "run_program" and not clients.options.programs:
            continue
        tool = getattr(tools, name)
        handled = _told(_alone(tool) if clients.options.transport == "stdio" else tool)
        server.add_tool(
            handled, name=name, description=inspect.cleandoc(tool.__doc__), annotations=notes, structured_output=False
        )
    return server


def _alone(tool: Callable[..., Awaitable[_Answer]]) -> Callable[..., Awaitable[_Answer]]:
    """Return a tool without its parameter `session`: over stdio there is only one."""

    @functools.wraps(tool)
    async def alone(**arguments: Any) -> _Answer:
        return await tool(**arguments)

    signature = inspect.signature(tool, eval_str=True)
    alone.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[parameter for parameter in signature.parameters.values() if parameter.name != "session"]
    )
    return alone


def _told(tool: Callable[..., Awaitable[_Answer]]) -> Callable[..., Awaitable[_Answer]]:
    """Return a tool whose errors become answers, so that a model can read them and retry."""

    @functools.wraps(tool)
    async def told(**arguments: Any) -> _Answer:
        try:
            return await tool(**arguments)
        except CellblockError as error:
            return answers.text(f"{type(error).__name__}: {error}", error=True)

    return told
