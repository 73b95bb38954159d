"""As in test_mutations.py, for defences that have tests of their own: switched off in a copy of the package, the test goes red.

Each test is run by a pytest of its own, on the copy. That all of them pass on a copy that nobody has changed is a test, too.
Where something has more than one line of defence, all of them are switched off: the table names each.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from .copies import Edit, copied, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

TESTS = Path(__file__).parents[1]
CUT, SECONDS = 99, 8
"""Without their defence some attacks never end: then, and after how long, a test is cut off."""
ENDLESS = frozenset(
    {
        *("30 connections", "30 headers", "32 the protocol", "33 turns", "34 a closed channel", "35 daemons"),
        *("36 a host that is killed", "44 the last rung", "45 all processes together", "49 tokens"),
    }
)

EGRESS, FILES, HERE = "egress/test_attacks.py::test_", "host/files/test_attacks.py::test_", "escape/test_"


class Mutant(NamedTuple):
    """A test, and the defences without which it must fail."""

    test: str
    edits: tuple[Edit, ...]


def mutant(test: str, *edits: tuple[str, str, str]) -> Mutant:
    return Mutant(test, tuple(Edit(*edit) for edit in edits))


CAPABILITIES = ("sandbox/confine.py", "    drop_capabilities()\n    prctl", "    prctl")
AHEAD = ("init/init.py", "            drop_capabilities()  # `confine`", "            pass  # `confine`")
FILTER = ("sandbox/confine.py", '    _filter(base64.b64decode(plan["seccomp"]))  # last', "    pass  # last")
REAPER = ("init/init.py", "                _kill_everything()\n            else", "                pass\n            else")

MUTANTS: dict[str, Mutant] = {
    "3 mounts": mutant(f"{HERE}system_calls.py::test_a_dangerous_call_is_refused[mount]", CAPABILITIES, AHEAD, FILTER),
    "4 handles": mutant(
        f"{HERE}system_calls.py::test_a_dangerous_call_is_refused[open_by_handle_at]", CAPABILITIES, AHEAD, FILTER
    ),
    "14 bpf": mutant(f"{HERE}system_calls.py::test_a_dangerous_call_is_refused[splice]", FILTER),
    "8 process 1": mutant(
        f"{HERE}processes.py::test_nothing_is_seen_of_process_1[environ]",
        CAPABILITIES,
        AHEAD,
        ("sandbox/syscall.py", "prctl(_PR_SET_DUMPABLE, 0)", "pass"),
    ),
    "19 the host's loopback": mutant(
        f"{HERE}network.py::test_the_hosts_loopback_is_not_the_sessions",
        ("sandbox/linux.py", " | 0x40000000 | 0x00020000\n", " | 0x00020000\n"),
        ("sandbox/linux.py", "        fcntl.ioctl(any_socket, 0x8914,", "        str(("),
        ("sandbox/linux.py", 'flags | 1, b""))', 'flags | 1, b"")))'),
    ),
    "22 the environment": mutant(
        f"{HERE}channel.py::test_the_hosts_environment_and_memory_are_not_in_the_session",
        (
            "host/start.py",
            "            env=_NO_ENVIRONMENT,\n            cwd",
            '            env={**__import__("os").environ},\n            cwd',
        ),
        ("zygote/boot.py", '"entered"] + sys.argv[3:], {})', '"entered"] + sys.argv[3:], dict(os.environ))'),
    ),
    "23 addresses": mutant(
        f"{EGRESS}23_addresses_in_binary",
        ("egress/addresses.py", "    found = objection(address)\n    return own(", "    return None\n    return own("),
    ),
    "24 addresses of names": mutant(
        f"{EGRESS}24_names_of_forbidden_addresses",
        (
            "egress/gate.py",
            "if refusal := self._rules.judge_address(",
            "if False and (refusal := self._rules.judge_address(",
        ),
        ("egress/gate.py", "addresses.objection_to(address)):", "addresses.objection_to(address))):"),
    ),
    "24 one lookup": mutant(
        f"{EGRESS}24_rebinding",
        ("egress/gate.py", "self._first(target, found)\n", "self._first(target, await self._addresses(target))\n"),
    ),
    "24 the machine's own": mutant(
        "egress/test_addresses.py::test_the_machines_own", ("egress/addresses.py", "return _OWN", "return None")
    ),
    "25 labels": mutant(
        f"{EGRESS}25_names_that_have_no_canonical_form",
        ("egress/names.py", " or not all(_LABEL.fullmatch(label) for label in labels)", ""),
    ),
    "25 case": mutant(f"{EGRESS}25_one_canonical_form", ("egress/names.py", "text.lower() if", "text if")),
    "26 a dot": mutant(
        f"{EGRESS}26_wildcards_end_at_a_dot", ("egress/rules.py", 'endswith(f".{self.host}")', 'endswith(f"{self.host}")')
    ),
    "27 ports": mutant("egress/test_rules.py::test_ports", ("egress/rules.py", "else port in DEFAULT_PORTS\n", "else True\n")),
    "28 hosts that disagree": mutant(
        f"{EGRESS}28_hosts_that_disagree",
        ("egress/http.py", "if named != (target.host, target.port):", "if False:"),
    ),
    "28 two framings": mutant(
        f"{EGRESS}28_heads_that_could_be_framed_in_two_ways", ("egress/http.py", "if lengths and codings:", "if False:")
    ),
    "29 every request is judged": mutant(
        f"{EGRESS}29_redirects_are_the_clients_to_follow",
        (
            "egress/gate.py",
            "if (refusal := self._rules.judge(target)) and not",
            "if False and (refusal := self._rules.judge(target)) and not",
        ),
    ),
    "30 connections": mutant(
        "egress/test_limits.py::test_30_more_connections_than_allowed",
        ("egress/proxy.py", "turned_away = len(self._clients) >= self._limits.connections", "turned_away = False"),
    ),
    "30 headers": mutant(
        "egress/test_limits.py::test_30_endless_header",
        (
            "egress/connection.py",
            "max_incomplete_event_size=self._limits.header_bytes",
            "max_incomplete_event_size=2**40",
        ),
    ),
    "32 the protocol": mutant(
        f"{HERE}channel.py::test_a_session_that_breaks_its_channel_is_killed_and_no_other[garbage]",
        ("host/kernel.py", '            self._condemn(f"it broke the protocol: {error}")', "            pass"),
    ),
    "33 turns": mutant(
        f"{HERE}channel.py::test_a_session_that_breaks_its_channel_is_killed_and_no_other[a forged ready]",
        (
            "wire/protocol.py",
            "        if following is None:\n            raise",
            "        if following is None:\n            return self.state\n            raise",
        ),
    ),
    "34 a closed channel": mutant(
        f"{HERE}channel.py::test_a_session_that_breaks_its_channel_is_killed_and_no_other[a channel shut down]",
        (
            "host/kernel.py",
            'self._loop.call_later(_EXIT_NEWS, self._condemn, "the code closed the kernel\'s channel")',
            "pass",
        ),
    ),
    "35 daemons": mutant(
        f"{HERE}processes.py::test_a_daemon_ends_with_its_session",
        REAPER,
        ("zygote/server.py", 'elif message["op"] == "kill":', 'elif message["op"] == "":'),
    ),
    "36 a host that is killed": mutant(
        f"{HERE}processes.py::test_everything_ends_when_the_host_is_killed",
        REAPER,
        ("zygote/server.py", "            processes.kill(processes.descendants(os.getpid()))", "            os._exit(0)"),
    ),
    "37 text is bounded": mutant(
        "host/test_collect.py::test_memory_for_text_is_bounded_whatever_is_written",
        ("host/collect.py", "excess = self._tail_size - self._limits.text // 2", "excess = 0"),
    ),
    "38 terminals": mutant(
        "test_terminal.py::test_sequences_are_shown_and_not_obeyed",
        ("terminal.py", "return ascii(found.group())[1:-1]", "return found.group()"),
    ),
    "38 names": mutant(
        "test_terminal.py::test_the_terminal_front_shows_names_as_names",
        ("cli/show.py", "printable(line, lines=False)", "line"),
    ),
    "39 values are bounded": mutant(
        "host/test_collect.py::test_values_that_do_not_fit_are_left_out",
        ("host/collect.py", "if len(raw) > self._values_room - size:", "if False:"),
    ),
    "40 archives": mutant(
        "host/files/test_archive.py::test_a_hostile_member_has_the_whole_archive_refused",
        ("host/files/archive.py", 'if ".." in parts:', "if False:"),
    ),
    "41 links": mutant(
        f"{FILES}a_planted_link_is_refused_as_such_by_every_operation",
        ("host/files/beneath.py", "0, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS)", "0, 0)"),
    ),
    "42 pipes": mutant(
        f"{FILES}a_fifo_and_a_socket_are_refused_at_once",
        ("host/files/beneath.py", "if stat.S_ISREG(info.st_mode):", "if True:"),
    ),
    "44 the last rung": mutant(
        f"{HERE}processes.py::test_code_that_will_not_stop_is_dead_by_the_deadline[signals ignored]",
        ("host/stopping.py", '    ("restarted", Kernel.kill, 1.0),\n', ""),
        ("host/stopping.py", "    kernel.abandon()\n", "    await cell.ended.wait()\n"),
    ),
    "41 links to where the host writes": mutant(
        f"{HERE}files.py::test_what_the_host_writes_follows_no_link_of_the_session[at work]",
        (
            "host/files/beneath.py",
            'with Tree.at("/") as root, held(root.make_directories(Path(directory).parts[1:])) as place:',
            "with held(os.open(directory, os.O_RDONLY)) as place:",
        ),
    ),
    "45 all processes together": mutant(
        f"{HERE}memory.py::test_a_session_over_its_memory_dies_and_its_result_names_the_limit[over children]",
        ("host/kernel.py", "if used > self._memory:", "if False:"),
    ),
    "45 one process": mutant(
        f"{HERE}memory.py::test_memory_of_one_process_is_an_error_that_names_the_limit",
        ("sandbox/plan.py", '        "DATA": resources.memory,\n', ""),
    ),
    "49 servers that nobody registered": mutant(
        f"{HERE}tools.py::test_what_a_session_may_not_ask_is_refused_before_anybody_is_asked",
        ("tools/mcp/lease.py", "return None if root is None else partial", "return partial"),
    ),
    "49 servers of another workspace": mutant(
        f"{HERE}tools.py::test_what_a_session_may_not_ask_is_refused_before_anybody_is_asked",
        ("store/servers.py", 'if root in ("", workspace) or root.startswith(prefix)', "if True"),
    ),
    "49 parameters": mutant(
        f"{HERE}tools.py::test_what_a_session_may_not_ask_is_refused_before_anybody_is_asked",
        ("tools/serving/app.py", "if request.params is not None:", "if False:"),
    ),
    "49 tokens": mutant(
        f"{HERE}tools.py::test_another_sessions_tool_port_wants_its_token",
        ("tools/serving/app.py", "if self.token is not None:", "if False:"),
    ),
    "49 what was accepted for one call": mutant(
        f"{HERE}tools.py::test_what_was_approved_is_what_the_server_gets",
        ("approvals/broker.py", "if key in self._remembered:", "if self._remembered:"),
        ("approvals/broker.py", "if not self._remembered.isdisjoint(_keys(self._calls[other.id]).values()):", "if True:"),
    ),
    "50 programs": mutant(
        f"{HERE}programs.py::test_nothing_is_executed_in_any_way[zygote]",
        ("sandbox/confine.py", "        _filter(seccomp.no_programs(os.uname().machine))", "        pass"),
    ),
    "51 the state": mutant(
        f"{HERE}servers.py::test_a_server_that_may_read_everything_does_not_read_the_state",
        ("tools/mcp/sandboxed.py", "deny_read=(*files.deny_read, own)", "deny_read=files.deny_read"),
    ),
    "51 what is around the state": mutant(
        f"{HERE}servers.py::test_a_server_that_may_read_everything_does_not_read_the_state",
        ("tools/mcp/sandboxed.py", "*probe.own_directories(), own)", "*probe.own_directories())"),
    ),
    "51 / is denied": mutant(
        f"{HERE}servers.py::test_a_server_sees_nothing_of_the_host",
        ("sandbox/policy.py", ' and "/" not in self.deny_read\n', "\n"),
    ),
    "51 what is allowed in what is denied, and no more": mutant(
        f"{HERE}files.py::test_in_what_is_denied_there_is_what_is_allowed_again_and_nothing_else",
        (
            "sandbox/linux.py",
            '        _set_attributes(made, b"", _RDONLY | _NOSUID | _NODEV)\n        return made',
            "        return made",
        ),
    ),
    "51 a server is confined": mutant(
        f"{HERE}servers.py::test_a_server_has_three_descriptors_no_privileges_and_a_filter",
        ("keeper/sandboxed.py", "        confine(confinement)\n", ""),
    ),
    "51 descriptors": mutant(
        f"{HERE}servers.py::test_a_server_has_three_descriptors_no_privileges_and_a_filter",
        (
            "keeper/sandboxed.py",
            "        processes.place_descriptors({_HOST: host.detach(), _KEEPER: keeper})\n",
            "        global _HOST, _KEEPER; _HOST, _KEEPER = host.detach(), keeper\n",
        ),
        ("keeper/sandboxed.py", "        os.closerange(3, processes.HIGH)\n", ""),
    ),
    "51 a keeper that is killed": mutant(
        f"{HERE}servers.py::test_nothing_of_a_server_outlives_its_stop[keeper]",
        ("keeper/sandboxed.py", "        processes.die_with_parent(signal.SIGKILL)\n", ""),
    ),
    "51 placeholders": mutant(
        "tools/mcp/test_sandboxed.py::test_no_sandboxed_server_outlives_its_host[host]",
        ("keeper/keeper.py", "        hold.release()\n", "        pass\n"),
    ),
    "51 rules": mutant(
        f"{HERE}servers.py::test_a_server_reaches_what_its_policy_names_and_nothing_else",
        (
            "egress/gate.py",
            "if (refusal := self._rules.judge(target)) and not",
            "if False and (refusal := self._rules.judge(target)) and not",
        ),
        (
            "egress/gate.py",
            "if refusal := self._rules.judge_address(",
            "if False and (refusal := self._rules.judge_address(",
        ),
        ("egress/gate.py", "addresses.objection_to(address)):", "addresses.objection_to(address))):"),
    ),
    "51 memory": mutant(
        f"{HERE}servers.py::test_a_server_over_its_memory_is_told_so",
        ("sandbox/plan.py", '        "DATA": resources.memory,\n', ""),
    ),
    "51 no sandbox, no server": mutant(
        "tools/mcp/test_sandboxed.py::test_no_server_starts_where_no_sandbox_can_be_made",
        (
            "keeper/sandboxed.py",
            "                os._exit(_EXIT_NOT_STARTED)\n        if init",
            "                processes.execute(command)\n        if init",
        ),
    ),
}

# It takes in what the tests of a mutant leave behind, and kills it when they are over.
RUN = """
import ctypes, os, signal, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
tests = subprocess.Popen([sys.executable, "-m", "pytest", *sys.argv[3:]])
try:
    status = tests.wait(float(sys.argv[1]))
except subprocess.TimeoutExpired:
    status = int(sys.argv[2])
while True:
    for pid in open(f"/proc/self/task/{os.getpid()}/children").read().split():
        os.kill(int(pid), signal.SIGKILL)
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        sys.exit(status)
"""


async def run(package: Path, *tests: str, seconds: int) -> tuple[int | None, str]:
    """Run tests with a copy of the package; return pytest's exit status and what it said."""
    options = ["-v", "-n", "0", "-x", "-p", "no:cacheprovider", f"--rootdir={TESTS.parent}"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RUN, str(seconds), str(CUT), *options, *(f"{TESTS}/{test}" for test in tests),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=TESTS.parent,
        env=environment(package),
    )  # fmt: skip
    out, _ = await process.communicate()
    return process.returncode, out.decode(errors="replace")


async def test_the_tests_pass_on_a_copy_that_is_not_changed(tmp_path: Path) -> None:
    status, said = await run(copied(tmp_path / "package"), *{row.test for row in MUTANTS.values()}, seconds=200)
    assert status == 0, said


@pytest.mark.parametrize("name", MUTANTS)
async def test_a_test_fails_without_its_defence(tmp_path: Path, name: str) -> None:
    row = MUTANTS[name]
    package = copied(tmp_path / "package", *row.edits)
    status, said = await run(package, row.test, seconds=SECONDS if name in ENDLESS else 100)
    # 1: tests failed. All else is a mistake here: no such test (4), none left (5), a module that cannot be loaded (2).
    begun = f"::{row.test.partition('::')[2]} " in said
    assert status == 1 or (status == CUT and name in ENDLESS and begun), said
    assert "SyntaxError" not in said, said
