"""The only exit: decides, resolves once, checks every address, and connects to a checked one."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from ipaddress import ip_address
from typing import Any, Literal

from cellblock.common import telemetry
from cellblock.common.addresses import connect
from cellblock.common.telemetry import MakeStep, untraced
from cellblock.common.threads import Threads
from cellblock.errors import InvalidInputError, StateError
from cellblock.walls.egress import addresses
from cellblock.walls.egress.hang_up import wait_for_answer
from cellblock.walls.egress.live import LiveNetwork
from cellblock.walls.egress.names import Address, Target, host_text, unmapped
from cellblock.walls.egress.rules import Denial, Refusal, Rules
from cellblock.walls.egress.tunnel import reset_on_close

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""Looks a name up: its addresses as text, best first. An `OSError` means that it has none."""

Dial = Callable[[Address, int], Awaitable[socket.socket]]
"""Connects to an address and a port, and returns the non-blocking socket."""

Hold = Callable[[], Awaitable[None]]
"""Returns when a connection may be made; raises `StateError` if it is no longer wanted."""

Ask = Callable[[str, int], Awaitable[bool]]
"""Decides about a host and a port that no rule names."""

_MAX_SHOWN = 200
_LOOKUPS = 4
_MAX_QUESTIONS = 32
"""Connections of one session that may wait for an answer: few compared to its limit of connections."""
_MAX_ADDRESSES = 32
"""Maximum addresses of one name to check: its owner can give it thousands."""
_THREADS = 16


@dataclass(frozen=True, slots=True)
class EgressLimits:
    """Limits on a session's use of the host.

    Attributes:
        connections: Number of clients served at a time. Some more are answered with 503, and the rest wait in the kernel.
        header_bytes: Size of a request's or a response's head.
        header_seconds: Time for a client to send the head of a request, or a SOCKS handshake.
        connect_seconds: Time to resolve a host and connect to it.
        idle_seconds: Time for which a connection may stay silent.
    """

    connections: int = 256
    header_bytes: int = 64 * 1024
    header_seconds: float = 10.0
    connect_seconds: float = 10.0
    idle_seconds: float = 300.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise InvalidInputError(f"EgressLimits.{name} must be more than 0, not {getattr(self, name)!r}.")


class DeniedError(Exception):
    """A target without an allowing rule, or with a denying one."""

    def __init__(self, denial: Denial) -> None:
        super().__init__(denial.message)
        self.denial = denial


class UnreachableError(Exception):
    """An allowed host that could not be reached.

    Attributes:
        cause: The cause, for the protocols to translate.
    """

    def __init__(self, message: str, cause: Literal["lookup", "refused", "timeout", "network"]) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(slots=True)
class Passage:
    """A connection that was let through, from before its lookup until its end.

    Attributes:
        target: The target.
        asked: Whether a person let it through, and no rule.
        task: Serves the client.
        client: The client.
        found: The addresses of the target, with the objections to them.
        upstream: The connection to it, once there is one.
        unjudged: Whether nothing decides about its requests, because no line named the host.
    """

    target: Target
    asked: bool
    task: asyncio.Task[Any]
    client: socket.socket
    found: list[tuple[Target, addresses.Objection | None]] = field(default_factory=list)
    upstream: socket.socket | None = None
    unjudged: bool = False

    def refusal(self, rules: Rules) -> Refusal | None:
        """Return why rules refuse it; None if they do not."""
        refusal = rules.judge(self.target)
        if refusal is not None and not (self.asked and refusal.rule_needed is not None):
            return refusal
        # All addresses count: if one address of a name is refused, none is trusted.
        judged = (rules.judge_address(self.target, reached, objection) for reached, objection in self.found)
        return next((one for one in judged if one is not None), None)


class Gate:
    """Opens connections for one session. Every protocol of the proxy uses `open`."""

    def __init__(
        self,
        network: LiveNetwork,
        limits: EgressLimits,
        on_denied: Callable[[Denial], None],
        resolve: Resolve,
        dial: Dial,
        ask: Ask | None = None,
        hold: Hold | None = None,
        step: MakeStep = untraced,
    ) -> None:
        self._hold = hold
        self._step = step
        self._network = network
        self._limits = limits
        self._on_denied = on_denied
        self._resolve = resolve
        self._dial = dial
        self._ask = ask
        self._slots = asyncio.Semaphore(_LOOKUPS)
        self._lookups: set[asyncio.Task[Sequence[str]]] = set()
        self._questions: dict[asyncio.Future[bool], Target] = {}
        self._passages: dict[socket.socket, Passage] = {}
        network.join(self.judge_again)

    def judge_again(self, all_connections: bool) -> list[asyncio.Task[Any]]:
        """Judge questions and connections by the present rules (`JudgeAgain`)."""
        rules, lines = self._network.state.rules, self._network.state.lines
        for question, target in self._questions.items():
            refusal = rules.judge(target)
            if refusal is None or refusal.rule_needed is None or not self._network.state.ask:
                question.cancel()
        refused = [
            one
            for one in self._passages.values()
            if all_connections or one.refusal(rules) is not None or (one.unjudged and lines.names(one.target.host))
        ]
        for passage in refused:
            for end in (passage.client, passage.upstream):
                if end is not None:
                    reset_on_close(end)
            passage.task.cancel()
        return [passage.task for passage in refused]

    def note_unjudged(self, client: socket.socket) -> None:
        """Note that nothing decides about the requests of a connection: a line that names its host resets it."""
        if (passage := self._passages.get(client)) is not None:
            passage.unjudged = True

    def leave(self, client: socket.socket) -> None:
        """Handle that the connection of a client to its target has ended. The client may ask for another one."""
        self._passages.pop(client, None)

    async def open(self, target: Target, method: str, client: socket.socket) -> socket.socket:
        """Connect to a target, if the rules allow it.

        Args:
            target: The target, in canonical form.
            method: The HTTP method, or ``SOCKS5``, for the log.
            client: The client. If it hangs up during a question, the question is withdrawn.

        Returns:
            A connected, non-blocking socket, owned by the caller.

        Raises:
            DeniedError: The rules do not allow it.
            UnreachableError: The rules allow it, but it cannot be reached.
            OSError: The client has hung up, or no descriptor is left.
        """
        if self._hold is not None:
            try:
                await self._hold()
            except StateError as error:
                raise ConnectionAbortedError(str(error)) from None
        attributes: dict[str, str | int] = {"server.address": host_text(target.host), "server.port": target.port}
        with self._step("cellblock.egress", attributes, kind="CLIENT") as step:
            try:
                upstream = await self._open(target, method, client)
            except DeniedError as error:
                step.set("cellblock.egress.reason", error.denial.reason)
                step.fail("refused")
                raise
            except UnreachableError as error:
                _count("unreachable")
                step.fail(error.cause)
                raise
            _count("allowed")
            return upstream

    async def _open(self, target: Target, method: str, client: socket.socket) -> socket.socket:
        refusal = self._network.state.rules.judge(target)
        if refusal and not await self._let_through(target, refusal, method, client):
            raise self._denied(target, self._network.state.rules.judge(target) or refusal, method)
        # The rules may have changed during the question. From here on, a change resets the connection if they refuse it.
        asked = self._network.state.rules.judge(target) is not None
        task = asyncio.current_task()
        assert task is not None
        passage = self._passages[client] = Passage(target, asked, task, client)
        try:
            async with asyncio.timeout(self._limits.connect_seconds):
                found = await self._addresses(target)
                self._check_addresses(passage, found, method)
                passage.upstream = await self._first(target, found)
        except TimeoutError as error:
            seconds = f"{self._limits.connect_seconds:g}"
            raise UnreachableError(f"{target} could not be reached within {seconds} s", "timeout") from error
        except OSError as error:  # no descriptor was left to check whose address it is
            raise UnreachableError(f"{target} could not be reached: {error.strerror}", "network") from error
        finally:
            if passage.upstream is None:
                self.leave(client)
        return passage.upstream

    def _check_addresses(self, passage: Passage, found: list[Address], method: str) -> None:
        """Check all addresses before the first connection."""
        passage.found = [(Target(address, passage.target.port), addresses.objection_to(address)) for address in found]
        if refusal := passage.refusal(self._network.state.rules):
            raise self._denied(passage.target, refusal, method)

    async def _let_through(self, target: Target, refusal: Refusal, method: str, client: socket.socket) -> bool:
        """Ask about a target that no rule names. Return whether it is allowed. Targets that a rule denies stay denied."""
        if self._ask is None or refusal.rule_needed is None or not self._network.state.ask:
            return False
        if self._has_many_questions():
            reason = f"{refusal.reason}, and {_MAX_QUESTIONS} connections of this session already wait for approval"
            raise self._denied(target, Refusal(reason, refusal.rule_needed), method)
        question = asyncio.ensure_future(self._ask(host_text(target.host), target.port))
        self._questions[question] = target
        try:
            await wait_for_answer(question, client)
        finally:
            self._questions.pop(question, None)
        # A change may have decided instead of the person, or after them.
        refusal_now = self._network.state.rules.judge(target)
        if refusal_now is None or refusal_now.rule_needed is None:
            return refusal_now is None
        return not question.cancelled() and question.result()

    def _has_many_questions(self) -> bool:
        return len(self._questions) >= _MAX_QUESTIONS

    def withdraw(self) -> None:
        """Withdraw open questions, whose connections are refused."""
        for question in self._questions:
            question.cancel()

    def refuse(self, named: str, reason: str, method: str) -> DeniedError:
        """Report a host that has no canonical form, and return the error to raise."""
        return self._report(Denial(ascii(named)[1:-1][:_MAX_SHOWN], 0, reason, None, ascii(method)[1:-1][:_MAX_SHOWN]))

    async def close(self) -> None:
        """Withdraw all questions, and abandon lookups in flight."""
        self._network.leave(self.judge_again)
        left: list[asyncio.Future[Any]] = [*self._questions, *self._lookups]
        for waiting in left:
            waiting.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _denied(self, target: Target, refusal: Refusal, method: str) -> DeniedError:
        shown = ascii(method)[1:-1][:_MAX_SHOWN]
        needed = refusal.rule_needed if refusal.rule_needed and self._network.can_allow(refusal.rule_needed) else None
        return self._report(Denial(host_text(target.host), target.port, refusal.reason, needed, shown))

    def _report(self, denial: Denial) -> DeniedError:
        _count("refused")
        self._on_denied(denial)
        return DeniedError(denial)

    async def _addresses(self, target: Target) -> list[Address]:
        if not isinstance(target.host, str):
            return [target.host]
        try:
            found = await self._look_up(target.host)
        except TimeoutError:
            raise
        except (OSError, UnicodeError) as error:
            raise UnreachableError(f"{target.host} could not be resolved: {error.args[-1]}", "lookup") from error
        if not found:
            raise UnreachableError(f"{target.host} could not be resolved: it has no address", "lookup")
        try:
            return _considered(found)
        except ValueError as error:
            raise UnreachableError(f"{target.host} could not be resolved: {error}", "lookup") from error

    async def _look_up(self, name: str) -> Sequence[str]:
        # A lookup in a thread cannot be stopped. It keeps its slot until it ends, even after its client has given up, so that
        # a session cannot exhaust the threads.
        await self._slots.acquire()
        lookup = asyncio.ensure_future(self._resolve(name))
        self._lookups.add(lookup)
        lookup.add_done_callback(self._looked_up)
        return await asyncio.shield(lookup)

    def _looked_up(self, lookup: asyncio.Task[Sequence[str]]) -> None:
        self._lookups.discard(lookup)
        self._slots.release()

    async def _first(self, target: Target, found: list[Address]) -> socket.socket:
        """Connect to the first address that answers. Each gets a share of the time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limits.connect_seconds
        last: OSError = OSError()
        for index, address in enumerate(found):
            share = (deadline - loop.time()) / (len(found) - index)
            try:
                async with asyncio.timeout(share):
                    return await self._dial(address, target.port)
            except OSError as error:  # TimeoutError is one
                last = error
        if isinstance(last, TimeoutError):
            raise last
        cause: Literal["refused", "network"] = "refused" if last.errno == errno.ECONNREFUSED else "network"
        what = os.strerror(last.errno) if last.errno else str(last)
        raise UnreachableError(f"{target} could not be reached: {what}", cause) from last


def _count(outcome: Literal["allowed", "refused", "unreachable"]) -> None:
    telemetry.add("cellblock.egress.requests", labels=(("cellblock.egress.outcome", outcome),))


def _considered(found: Sequence[str]) -> list[Address]:
    """Return the first addresses of a name, which are the only candidates."""
    return [unmapped(ip_address(text)) for text in list(dict.fromkeys(found))[:_MAX_ADDRESSES]]


async def resolve(name: str) -> list[str]:
    """Resolve a name like every program on this machine: by hosts file, DNS, and other configured sources."""
    return await asyncio.get_running_loop().run_in_executor(_pool(), _getaddrinfo, name)


async def dial(address: Address, port: int) -> socket.socket:
    """Connect to an address, without a lookup, so that the checked address is the one used."""
    return await connect(str(address), port)


def _getaddrinfo(name: str) -> list[str]:
    return [str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]


@cache
def _pool() -> Threads:
    # Not the loop's own executor: slow lookups of sandboxed code must not block the embedding program.
    return Threads(_THREADS, "cellblock-lookup")
