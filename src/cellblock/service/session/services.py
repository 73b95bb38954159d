"""The services of a session: tools, commands and hosts, behind one approval broker."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
import weakref
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from cellblock.common import config, telemetry
from cellblock.common.tasks import despite_cancellation
from cellblock.errors import CellblockError, InvalidInputError, StoreError
from cellblock.host.options import SessionHooks, SessionOptions
from cellblock.model.decisions import CommandRequest, Decision
from cellblock.service.session.http_requests import RequestApprover
from cellblock.service.session.policy import with_readable
from cellblock.service.session.service_options import ServiceOptions, SessionOrigin
from cellblock.service.session.tool_directories import ToolDirectories
from cellblock.tools.approvals.broker import Broker
from cellblock.tools.approvals.call import Origin
from cellblock.tools.approvals.elicitation import Elicitation, Person
from cellblock.tools.approvals.request import ApprovalRequest
from cellblock.tools.mcp.changes import ToolFacts
from cellblock.tools.mcp.lease import Lease, SharedServers
from cellblock.tools.registry.approvals import Approvals
from cellblock.tools.registry.servers import ServerRegistry
from cellblock.tools.serving.port import ToolPort
from cellblock.tools.serving.tool_app import session_app
from cellblock.tools.serving.tool_server import bind, resolved

if TYPE_CHECKING:
    from cellblock.host import Host, Session
    from cellblock.tools.calling.content import CallTool, ToolOutcome, ToolSpec
    from cellblock.tools.mcp.params import ServerParams
    from cellblock.tools.mcp.servers import Servers
    from cellblock.tools.serving.http import App

_MAX_ARGUMENTS = 200
_MAX_RESULT = 2000
_LOG = logging.getLogger("cellblock.sessions")
_shared: weakref.WeakKeyDictionary[Host, dict[float, SharedServers]] = weakref.WeakKeyDictionary()
"""The servers of each host, by the seconds in which they must start, which sessions choose."""


def open_session(
    host: Host,
    options: SessionOptions,
    service_options: ServiceOptions,
    session_id: str,
    origin: SessionOrigin | None = None,
) -> tuple[Session, SessionServices]:
    """Create a session and its services without starting them. The caller closes both.

    Args:
        host: The host.
        options: The session's options. The services decide about commands and hosts.
        service_options: The options of the services.
        session_id: The session's id in the audit record.
        origin: Its name, and what it starts from.

    Raises:
        StateError, InvalidInputError, InterpreterError, SandboxError: As for `Host.session`.
    """
    origin = origin or SessionOrigin()
    secret = secrets.token_urlsafe(24)
    if origin.remains is not None:
        secret = origin.remains.env.get("CELLBLOCK_TOOL_TOKEN", secret)  # the session's code already has this token
    tools = {"CELLBLOCK_TOOL_HOST": "127.0.0.1"}
    own_network = host.defaults.tier_for(options).own_network
    if not own_network:
        tools["CELLBLOCK_TOOL_TOKEN"] = secret
    named = ToolDirectories.read(service_options.tools, options.kernel_env or {}, options.working_dir)
    services = SessionServices(
        host, service_options, named.callable, secret=secret, session_id=session_id, own_network=own_network
    )
    session = host.session(
        options,
        label=origin.label,
        remains=origin.remains,
        start_from=origin.start_from,
        hooks=SessionHooks(
            tool_port=services.port.serve,
            uncounted_seconds=services.uncounted_seconds,
            on_begin=services.broker.ask_again,  # about calls of background work that had no reader
            name=origin.name,
            network=origin.network,
            network_changed=services.record_change,
            loads=origin.loads,
        ),
        kernel_env=tools | dict(options.kernel_env or {}) | dict(named.environment),
        policy=with_readable(options, named.readable, host),
        on_command=services.may_run if service_options.approve_shell_cmds else None,
        on_host=services.may_reach,
        on_request=RequestApprover(service_options.rules, services.broker),
        forbid_programs=service_options.require_shell_escape,
    )
    _LOG.info("%s has the id %s", session.wanted.session, session_id)
    services.attach(session)
    return session, services


class SessionServices:
    """The tools, commands and hosts of one session, behind one approval broker.

    Attributes:
        broker: Decides about all of them.
        port: The port on which the session's own code calls tools.
        secret: The token for calls from outside the session.
        on_elicitation: Asks a person to fill in forms of servers; None if no one can be asked. May be replaced.
        calls: The number of tool calls in progress.
        on_decision: Called with each recorded decision. May be replaced.
        on_unrecorded: Called with the error if a decision cannot be recorded: the call fails. May be replaced.
        on_result: Called with the decision about a tool call, and the start of its result. May be replaced.
    """

    def __init__(
        self,
        host: Host,
        options: ServiceOptions,
        directories: tuple[str, ...],
        *,
        secret: str,
        session_id: str,
        own_network: bool,
    ) -> None:
        """Set up without opening or starting anything. The session, which needs parts of this, is attached next.

        Args:
            host: The host of the session.
            options: The options of the services.
            directories: Real paths of directories outside the workspace whose servers may be called.
            secret: The token for calls from outside the session.
            session_id: The session's id in the audit record.
            own_network: Whether only the session's code reaches its port, so that it needs no token.
        """
        self._session: Session
        self.broker = Broker(options.rules, self._ask, options.approval_timeout, self._record, session=session_id)
        self.secret = secret
        self.on_elicitation = options.on_elicitation
        self.calls = 0
        self.on_decision: Callable[[Decision], object] = lambda _: None
        self.on_unrecorded: Callable[[StoreError], object] = lambda _: None
        self.on_result: Callable[[Decision, str], object] = lambda _, __: None
        self._always: dict[tuple[str, int], str] = {}
        """Hosts that a person has allowed from now on, until they are lines of the network, with who allowed them."""
        self._person = Person(session_id, self._elicit)
        self._counts_approvals = options.timeout_includes_approvals
        self._directories = directories
        self._approve_tool_calls = options.approve_tool_calls
        self._registry: ServerRegistry | None = None
        self._approvals: Approvals | None = None
        self._functions: dict[str, CallTool] = {}
        self._lease = Lease(self._servers(host, options.connect_timeout, options.own_servers), self._root, self._digest)
        self.port = ToolPort(self._app(None if own_network else secret))
        self._ports = [self.port]

    def attach(self, session: Session) -> None:
        """Serve this session, which has not started."""
        self._session = session
        self.broker.hold = session.holding.wait
        self.broker.step = session.trace.step
        session.trace.name = self._person.session

    def uncounted_seconds(self) -> float:
        """Return the seconds of waiting for decisions, if they do not count towards the timeouts of cells."""
        return 0.0 if self._counts_approvals else self.broker.waited

    async def may_run(self, request: CommandRequest) -> bool | str:
        """Decide about a command of a cell; return the reason of a refusal. The text shown is exactly what runs."""
        arguments = {name: value for name, value in request.to_dict().items() if name != "tool" and value}
        decision = await self.broker.decide("shell", "shell", request.tool, arguments)
        return decision.allowed or (decision.reason.removeprefix("rejected: ") if decision.reason != "rejected" else False)

    async def may_reach(self, host: str, port: int) -> bool:
        """Decide about a host that the policy does not name."""
        try:
            return (await self.broker.decide("network", "network", "connect", {"host": host, "port": port})).allowed
        finally:
            if (by := self._always.pop((host, port), None)) is not None:
                # Even if the client has hung up meanwhile: the person has decided about later connections, too.
                await despite_cancellation(asyncio.create_task(self._add_host(f"{host}:{port}", by)))

    async def _add_host(self, line: str, by: str) -> None:
        try:
            await self._session.change_network(allow=[line], by=by)
        except CellblockError as error:
            self._note(f"[cellblock] {line} is allowed only once: {error}")

    async def record_change(self, lists: Mapping[str, Any], by: str) -> None:
        """Record a change of the session's network, like a decision."""
        payload = json.dumps(lists, separators=(",", ":")).encode("ascii")
        session = self._person.session
        await self._record(Decision("allow", by, session, "network", "network", "change", payload, time.time()))

    async def serve(self, host: str, port: int) -> None:
        """Serve the session's tools to programs of this machine that know `secret`: ``POST /run``, decided like its own calls.

        Args:
            host: A loopback name or address.
            port: The port.

        Raises:
            InvalidInputError: Other machines can reach the host.
            OSError: The port is not available.
        """
        addresses = await resolved(host)
        if not all(ip_address(address).is_loopback for address in addresses):
            raise InvalidInputError(
                f"tool_server_host must be reachable from this machine only, such as 'localhost', not {host!r}"
            )
        for listener in bind(addresses, port):
            self._ports.append(ToolPort(self._app(self.secret)))
            self._ports[-1].serve(listener)

    def offer(self, server: str, call: CallTool) -> None:
        """Let the session's code call functions of this program, as the tools of a named server without a program.

        Args:
            server: The server's name in calls, rules and the audit record. Earlier functions of this server are replaced.
            call: Calls the functions: `cellblock.service.session.functions.caller`.
        """
        self._functions[server] = call

    async def reset(self) -> None:
        """Stop the session's own MCP servers, withdraw pending requests, and delete standing permissions."""
        self.broker.close("the session was reset")
        self.broker.forget()
        await self._lease.reset()

    async def close(self) -> None:
        """Close all services."""
        self.broker.close()
        for port in self._ports:
            await port.close()
        await self._lease.close()
        if self._approvals is not None:
            self._approvals.close()
            self._approvals = None
        if self._registry is not None:
            self._registry.close()
            self._registry = None

    # -- who decides ---------------------------------------------------------------------------------------------------

    def _ask(self, request: ApprovalRequest) -> bool | None:
        if request.kind == "tool" and not self._approve_tool_calls:
            return True
        if request.kind == "network":
            request.add_done_callback(self._note_always)
        if self._session.cells.notify(request):
            request.add_done_callback(self._retract)
            return None  # the reader of the stream decides
        # Code started by execute() has no reader, and everything is approved, as documented. Between cells, the request
        # waits for the next reader.
        return True if self._session.cells.running else None

    def _note_always(self, request: ApprovalRequest) -> None:
        if request.state == "accepted" and request.always == "call":
            by = f"person: {request.by}" if request.by else "person"
            self._always[request.tool_args["host"], request.tool_args["port"]] = by

    async def _elicit(self, elicitation: Elicitation) -> Mapping[str, Any] | None:
        """Ask a person a server's question. The waiting time does not count towards the cell's timeout."""
        if self.on_elicitation is None:
            return None
        _LOG.info("MCP server %r asks in session %s", elicitation.server, self._person.session)
        names = {"mcp.method.name": "elicitation/create", "cellblock.server": elicitation.server[: telemetry.MAX_NAME]}
        step = self.broker.step("elicitation/create", names, kind="SERVER", metric="cellblock.approval.wait.duration")
        telemetry.add("cellblock.approvals.pending")
        try:
            with self.broker.somebody_is_asked(), step:
                try:
                    async with asyncio.timeout(self.broker.timeout):
                        answer = await self.on_elicitation(elicitation)
                except TimeoutError:
                    answer = None
                step.labels = (("cellblock.approval.outcome", "deny" if answer is None else "allow"),)
                step.set("cellblock.approval.outcome", "deny" if answer is None else "allow")
                return answer
        finally:
            telemetry.add("cellblock.approvals.pending", -1)

    def _retract(self, request: ApprovalRequest) -> None:
        """Drop a withdrawn request before the reader gets it: otherwise code could fill the memory with requests."""
        if request.state == "withdrawn":
            self._session.cells.retract(request)

    async def _record(self, decision: Decision) -> None:
        try:
            if self._approvals is None:
                self._approvals = Approvals(config.state_directory())
            await self._approvals.add(decision)
        except StoreError as error:
            self.on_unrecorded(error)
            raise
        self.on_decision(decision)
        if decision.allowed:
            self._session.succession.note_outside(_described(decision))

    def _app(self, token: str | None) -> App:
        return session_app(
            self.broker,
            self._caller,
            facts=self._facts,
            origin=self._origin,
            note=self._note,
            token=token,
            on_progress=self._on_progress,
            on_log=lambda level, text: self._session.cells.tell(f"[{level}] {text}"),
            on_outcome=self._on_outcome,
            person=self._person,
        )

    # -- tools ---------------------------------------------------------------------------------------------------------

    def _servers(self, host: Host, connect_timeout: float, own: bool) -> SharedServers:
        of_host = {} if own else _shared.setdefault(host, {})
        shared = of_host.get(connect_timeout)
        if shared is None:
            # Not bound to this session: others use the lookup, too.
            shared = of_host[connect_timeout] = SharedServers(
                _registered, connect_timeout=connect_timeout, on_tools=_add_announced
            )
        return shared

    def running(self, server: str, params: ServerParams) -> Servers | None:
        """Return the servers with a server that runs for this session with these parameters; None if it does not run."""
        return self._lease.running(server, params)

    def _caller(self, server: str) -> CallTool | None:
        own = self._functions.get(server)
        call = own or self._lease.caller(server)
        return None if call is None else self._counted(self._session.trace.traced(server, call, mcp=own is None))

    def _counted(self, call: CallTool) -> CallTool:
        async def counted(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            try:
                return await call(*arguments, **options)
            finally:
                self.calls -= 1

        return counted

    def _root(self, server: str) -> str | None:
        if self._registry is None:
            self._registry = ServerRegistry()
        return self._registry.root_within(server, self._session.workspace, *self._directories)

    def _digest(self, server: str, root: str) -> str:
        return "" if self._registry is None else self._registry.digest(server, root)

    def _origin(self, server: str) -> Origin:
        """Return the server that a name refers to.

        A permission for it covers no other server registered under the same name.
        """
        if server in self._functions:
            return Origin("", "functions of this program")
        root = self._root(server) or ""
        return Origin(root, self._digest(server, root))

    def _facts(self, server: str, tool: str) -> ToolFacts | None:
        root = None if server in self._functions else self._root(server)
        return None if root is None or self._registry is None else self._registry.facts(server, root, tool)

    # -- what reaches the session's reader -----------------------------------------------------------------------------

    def _note(self, line: str) -> None:
        self._session.cells.note(line)

    def _on_progress(self, done: float, total: float | None, message: str | None) -> None:
        share = f"{done:g}" if total is None else f"{done:g}/{total:g}"
        self._session.cells.tell(f"[progress {share}] {message or ''}".rstrip())

    def _on_outcome(self, decision: Decision, outcome: ToolOutcome) -> None:
        """Show the images of a tool's result, as if the code had displayed them."""
        self.on_result(decision, outcome.beginning(_MAX_RESULT))
        for image in outcome.images:
            if image.mime_type.startswith("image/"):
                self._session.cells.show({image.mime_type: image.data})


def _registered(root: str, server: str) -> ServerParams:
    return ServerRegistry().get(server, root)


async def _add_announced(root: str, server: str, tools: list[ToolSpec], instructions: str) -> None:
    from cellblock.tools.apigen.generate import add_announced  # most sessions do not need it

    await add_announced(root, server, tools, instructions)


def _described(decision: Decision) -> str:
    """Describe a call, with the start of its arguments."""
    called = f"{decision.server}.{decision.tool}" if decision.kind == "tool" else decision.kind
    arguments = decision.payload[: _MAX_ARGUMENTS + 1].decode()  # it is ASCII
    return f"{called} {arguments if len(arguments) <= _MAX_ARGUMENTS else arguments[:_MAX_ARGUMENTS] + '…'}"
