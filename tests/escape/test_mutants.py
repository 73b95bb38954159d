"""As in test_mutations.py, for defences that have tests of their own: switched off in a copy of the package, the test goes red.

Each test is run by a pytest of its own, on the copy. That all of them pass on a copy that nobody has changed is a test, too.
Where something has more than one line of defence, all of them are switched off: the table names each.

`make mutants` runs all of them, before a release and at night. `make slow` runs a sample, another one each day.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from suite import SEED, SUMMARY, is_whole, selection

from .copies import Edit, copied, environment

pytestmark = [pytest.mark.slow, pytest.mark.sampled(1), pytest.mark.timeout(240)]

TESTS = Path(__file__).parents[1]
PART = 40
"""How many tests are run at once on a copy that is not changed."""
SAMPLE = 12
"""How many mutants `make slow` runs."""
SECONDS = 6
"""Without their defence some attacks never end, or only at a deadline: after how long their tests are cut off."""
ENDLESS = frozenset(
    {
        "28 hosts that disagree",
        "28 two framings",
        "29 questions that the rules have answered",
        "30 connections",
        "30 headers",
        "32 the protocol",
        "33 turns",
        "34 a closed channel",
        "35 daemons",
        "36 a close that is cancelled",
        "36 a host that is killed",
        "36 launchers that do not answer",
        "36 what is stopped",
        "44 callbacks that wait for themselves",
        "44 the last rung",
        "45 all processes together",
        "45 buffers of sockets",
        "45 page tables",
        "45 shared memory and queues of System V",
        "49 tokens",
        "51 a keeper that is killed",
        "51 placeholders",
        "54 floods of servers",
        "54 lists of tools",
        "54 requests of servers",
        "54 schemas of servers",
        "56 memory",
        "60 clients that dawdle",
        "60 connections",
        "60 handshakes",
        "60 handshakes that do not end",
        "60 heads without end",
        "61 another user",
    }
)

EGRESS, FILES, HERE = "walls/egress/test_attacks.py::test_", "host/files/test_attacks.py::test_", "escape/test_"
UNDO, COUNTERS = f"{HERE}undo.py::test_", f"{HERE}counters.py::test_"
VERIFIER = "escape/test_verifier.py::test_"
KEYS = "walls/keys/test_"
ASKED_WITH_VALUES = Edit(
    "walls/keys/opened.py",
    "OpenedConnection._judged",
    """
    filled = self._filled(head, upgrade=upgrade)
    content = await read_body(reader, self._client, 60) if given is None else given

    async def body() -> bytes | None:
        return self._fill_body(filled, content)

    answer = await judge.ask(self._method, filled.target.decode("ascii"), names, body)
    if answer.upstream is not None:
        self._upstream.close()
        self._upstream, self._writer = self._to_server(answer.upstream), self._new_writer()
        await self._wait(asyncio.create_task(self._reach()))
    return content
    """,
)
"""People are asked about what is sent, secrets included."""
WALLS = "host/files/test_walls.py::test_"
GUARD = "fronts/gateway/test_guard.py::test_"
SNAPSHOTS = "host/snapshots/"
FORKS, COPIES = "worker/forks/test_safety.py::", "host/checkpoints/test_"
SURVIVAL = "host/survival/test_"
KILLED = f"{SURVIVAL}takeover.py::test_whatever_a_host_was_doing_the_next_one_finds_one_state"
LIFE = "host/test_lifecycle.py::test_"
CLONES = "host/clones/test_"
GPUS = "walls/sandbox/test_gpus.py::"
PAGES, PUBLISHED = "fronts/gateway/test_ports.py::", "fronts/e2b/test_published.py::"


class Mutant(NamedTuple):
    """A test, and the defences without which it must fail."""

    test: str
    edits: tuple[Edit, ...]


def mutant(test: str, *edits: Edit) -> Mutant:
    return Mutant(test, edits)


CAPABILITIES = Edit("walls/sandbox/confine.py", "drop_capabilities", "pass")
FILTER = Edit("walls/sandbox/confine.py", "_filter", "pass")
APART = Edit("launch/init/worker.py", "_stand_apart", "inner.send(b'0')")
REAPER = Edit("launch/init/serving.py", "_kill_everything", "pass")
CONDEMNED = Edit("host/kernels/kernel.py", "Kernel._condemn", "pass")
CHECKED = Edit("walls/egress/gate.py", "Gate._check_addresses", "pass")
ASKED = Edit("walls/egress/gate.py", "Gate._let_through", "return True")
READ_ONLY = Edit("walls/linux/mount_api.py", "set_read_only", "pass")
MEMORY = Edit("walls/sandbox/plan.py", "_limits", 'return {"NOFILE": resources.open_files, "NPROC": resources.processes}')
KNOWN = "until, is_valid = self._tickets.pop(ticket, (0.0, bool))\nif "
ENTERED = "\n    return None\nmade = secrets.token_urlsafe(24)\nself._cookies[made] = is_valid\nreturn made"
HOSTS = "return re.compile("

MUTANTS: dict[str, Mutant] = {
    "69 hosts": mutant(
        f"{KEYS}opened.py::test_what_is_ambiguous_or_misplaced_is_refused[host]",
        Edit("walls/keys/opened.py", "OpenedConnection._check_host", "pass"),
    ),
    "69 the greeting": mutant(
        f"{KEYS}opened.py::test_a_name_in_the_greeting_must_be_the_connections",
        Edit("walls/keys/turnkey.py", "_note_name", "return None"),
    ),
    "69 places": mutant(
        f"{KEYS}opened.py::test_what_is_ambiguous_or_misplaced_is_refused[cookie]",
        Edit("walls/keys/fill.py", "_check_left", "pass"),
    ),
    "69 encoded placeholders": mutant(
        f"{KEYS}opened.py::test_what_is_ambiguous_or_misplaced_is_refused[encoded]",
        Edit("walls/keys/fill.py", "has_placeholder", "return any(_PLACEHOLDER.search(text) for text in texts)"),
    ),
    "69 folded headers": mutant(
        f"{KEYS}opened.py::test_what_is_ambiguous_or_misplaced_is_refused[folded]",
        Edit("walls/keys/opened.py", "_FOLDED", 're.compile(b"(?!)")'),
    ),
    "69 echoes in Base64": mutant(
        f"{KEYS}opened.py::test_an_echo_becomes_the_placeholder_in_every_form_and_across_chunks",
        Edit("walls/keys/scan.py", "_inside", "return []"),
    ),
    "69 echoes across chunks": mutant(
        f"{KEYS}opened.py::test_an_echo_becomes_the_placeholder_in_every_form_and_across_chunks",
        Edit("walls/keys/scan.py", "Scan._beginning", "return 0"),
    ),
    "69 certificates": mutant(
        f"{KEYS}opened.py::test_the_server_needs_a_trusted_certificate_of_its_name",
        Edit("walls/keys/opened.py", "OpenedConnection._wait", "pass"),
    ),
    "69 system calls": mutant(
        f"{KEYS}confinement.py::test_nothing_can_be_opened",
        Edit("walls/keys/confinement.py", "confine", "prctl(abi.PR_SET_DUMPABLE, 0)"),
    ),
    "69 bodies": mutant(
        f"{KEYS}opened.py::test_other_bodies_are_forwarded_unchanged",
        Edit(
            "walls/keys/bodies.py",
            "inserts_at",
            "return [(one['name'], one['placeholder'].encode(), one['value']) for one in secrets]",
        ),
    ),
    "69 removed secrets": mutant(
        "host/test_secrets.py::test_a_secret_is_read_again_and_removed_live",
        Edit("walls/keys/session_keys.py", "SessionKeys.remove", "self._removed.add(name)"),
    ),
    "69 removed secrets of the next host": mutant(
        "host/test_secrets.py::test_a_removal_holds_for_the_next_host_and_for_its_branches",
        Edit("walls/keys/session_keys.py", "SessionKeys._family", "return [self]"),
    ),
    "69 secrets removed while a body arrives": mutant(
        f"{KEYS}opened.py::test_a_secret_that_is_removed_while_a_body_arrives_is_not_sent",
        Edit("walls/keys/fill.py", "_contains", "return False"),
        Edit("walls/keys/fill.py", "_check_left", "pass"),
    ),
    "69 reports of a turnkey": mutant(
        f"{KEYS}messages.py::test_a_wrong_report_is_refused[host]",
        Edit("walls/keys/messages.py", "parse_report", "return Log(())"),
    ),
    "69 plain HTTP": mutant(
        "host/test_secrets.py::test_hosts_without_a_secret_stay_tunnels_and_plain_http_carries_none",
        Edit("walls/egress/proxy_connection.py", "Connection._check_plain", "pass"),
    ),
    "70 paths": mutant(
        f"{KEYS}judged.py::test_no_spelling_of_a_path_passes_a_line[/a/%2e%2e/b]",
        Edit("walls/egress/paths.py", "_check", "pass"),
    ),
    "70 both readings of a slash": mutant(
        "walls/egress/test_lines.py::test_what_a_line_covers",
        Edit("walls/egress/paths.py", "_ENCODED_SLASH", 're.compile("(?!)")'),
    ),
    "70 overridden methods": mutant(
        f"{KEYS}judged.py::test_no_header_replaces_the_method_or_the_path",
        Edit("walls/egress/http.py", "without_overrides", "return headers"),
    ),
    "70 pipelined requests": mutant(
        f"{KEYS}judged.py::test_a_request_behind_an_allowed_one_is_judged_itself",
        Edit(
            "walls/keys/judged.py",
            "Judge.ask",
            "self._seen = getattr(self, '_seen', 0) + 1\nif self._seen > 1:\n    return Answer(None)\n"
            "answer, _ = await self._say({'method': method, 'url': url, 'secrets': secrets})\n"
            "return Answer(answer['refused'] and tuple(answer['refused']))",
        ),
    ),
    "70 bodies that nobody can read": mutant(
        f"{KEYS}judged.py::test_a_body_that_is_too_large_to_show_is_refused",
        Edit("walls/egress/judge.py", "MOST_BODY", "1 << 40"),
    ),
    "70 hidden characters": mutant(
        "walls/egress/test_judge.py::test_a_person_sees_the_request_and_its_body",
        Edit("tools/approvals/request.py", "visible", "return text"),
    ),
    "70 questions": mutant(
        "walls/egress/test_judge.py::test_questions_are_limited",
        Edit("walls/egress/judge.py", "MOST_QUESTIONS", "10_000"),
    ),
    "70 answers after a change": mutant(
        "walls/egress/test_judge.py::test_an_answer_does_not_outlast_the_lines",
        Edit("walls/egress/judge.py", "RequestJudge._is_outdated", "return False"),
    ),
    "70 a turnkey that lies": mutant(
        f"{KEYS}turnkey_link.py::test_a_turnkey_that_breaks_the_rules_loses_its_session_only",
        Edit("walls/keys/turnkey_link.py", "TurnkeyLink._on_report", "pass"),
    ),
    "69 signatures for other services": mutant(
        f"{KEYS}sigv4.py::test_28_what_another_service_could_accept_is_refused",
        Edit("walls/keys/sigv4.py", "_check_scope", "pass"),
    ),
    "69 services that issue keys": mutant(
        f"{KEYS}sigv4.py::test_a_service_that_issues_keys_must_be_named",
        Edit("walls/keys/sigv4.py", "_ISSUERS", "()"),
    ),
    "69 placeholders for other hosts": mutant(
        f"{KEYS}opened.py::test_a_placeholder_for_another_opened_host_is_refused",
        Edit("walls/keys/sigv4.py", "covers", "return True"),
        Edit("walls/keys/fill.py", "_check_left", "pass"),
    ),
    "69 slow heads": mutant(
        f"{KEYS}opened.py::test_a_slow_head_ends_the_connection",
        Edit(
            "walls/keys/opened.py",
            "OpenedConnection._head",
            "while (event := reader.next_event()) is h11.NEED_DATA:\n"
            "    async with asyncio.timeout(20):\n"
            "        reader.receive_data(await self._client.receive(HEAD_READ))\nreturn event",
        ),
    ),
    "69 trailers": mutant(
        f"{KEYS}opened.py::test_extensions_and_trailers_of_chunks_are_dropped_and_wrong_chunks_refused",
        Edit(
            "walls/egress/exchange.py",
            "Exchange._heard_all",
            """
            while (event := self._reader.next_event()) is not h11.NEED_DATA:
                pieces.append(self._sent(self._writer, event))
                if isinstance(event, h11.EndOfMessage):
                    return True
            return False
            """,
        ),
    ),
    "69 methods": mutant(
        f"{KEYS}opened.py::test_what_is_ambiguous_or_misplaced_is_refused[trace]", Edit("walls/keys/opened.py", "_NEVER", "()")
    ),
    "69 other protocols": mutant(
        f"{KEYS}opened.py::test_what_is_ambiguous_or_misplaced_is_refused[upgrade]",
        Edit("walls/keys/opened.py", "OpenedConnection._check_upgrade", "pass"),
    ),
    "69 the preface of HTTP/2": mutant(
        f"{KEYS}opened.py::test_the_preface_of_http_2_is_told_to_use_http_1",
        Edit("walls/keys/opened.py", "_PREFACE", 'b"\\0"'),
    ),
    "70 WebSockets": mutant(
        f"{KEYS}judged.py::test_only_its_own_line_allows_a_websocket",
        Edit("walls/egress/lines.py", "RequestLine._covers_method", "return self.method in ('*', method)"),
    ),
    "69 what is not TLS": mutant(
        f"{KEYS}opened.py::test_what_is_not_tls_reaches_no_opened_server",
        Edit(
            "walls/keys/opened.py",
            "OpenedConnection.serve",
            """
            from cellblock.walls.egress.ends import PlainEnd
            ends = PlainEnd(self._client._connection), PlainEnd(self._upstream._connection)
            with self._client._connection, self._upstream._connection:
                await relay(*ends, b"", b"", 0.5)
            """,
        ),
    ),
    "69 heads of responses": mutant(
        f"{KEYS}opened.py::test_an_echo_becomes_the_placeholder_in_every_form_and_across_chunks",
        Edit("walls/egress/exchange.py", "_changed", "return headers"),
    ),
    "69 compressed responses": mutant(
        f"{KEYS}opened.py::test_a_compressed_answer_to_a_secret_is_refused_and_none_is_asked_for",
        Edit("walls/egress/exchange.py", "_is_coded", "return False"),
    ),
    "69 parts of responses": mutant(
        f"{KEYS}opened.py::test_a_compressed_answer_to_a_secret_is_refused_and_none_is_asked_for",
        Edit("walls/keys/opened.py", "_HIDING", "()"),
    ),
    "69 turnkeys in /proc": mutant(
        "host/test_secrets.py::test_a_killed_turnkey_is_replaced",
        Edit(
            "walls/sandbox/mounts.py", "_Builder._mount_proc", "make_target(target, directory=True)\n_show_outer_proc(target)"
        ),
        Edit("walls/sandbox/namespaces.py", "kernel_version", "return 5, 11"),  # no settings in /proc, which is read-only
    ),
    "69 memory and cores of turnkeys": mutant(
        f"{KEYS}confinement.py::test_21_processes_of_its_user_see_nothing_of_it[True]",
        Edit("walls/keys/confinement.py", "_hide", "pass"),
    ),
    "69 tunnels": mutant(
        "host/test_secrets.py::test_hosts_without_a_secret_stay_tunnels_and_plain_http_carries_none",
        Edit("walls/keys/session_keys.py", "SessionKeys.opens", "return True"),
        Edit("walls/keys/sigv4.py", "covers", "return True"),
    ),
    "69 other ports": mutant(
        f"{KEYS}opened.py::test_a_placeholder_for_another_opened_host_is_refused",
        Edit("walls/keys/sigv4.py", "covers", "return any(host.split(':')[0] == at.split(':')[0] for host in hosts)"),
    ),
    "69 a port in the header Host": mutant(
        f"{KEYS}opened.py::test_what_is_ambiguous_or_misplaced_is_refused[port]",
        Edit("walls/keys/opened.py", "OpenedConnection._check_host", "pass"),
    ),
    "69 certificates of a session": mutant(
        "host/test_secrets.py::test_the_certificates_and_their_mounts_cannot_be_changed",
        Edit("walls/keys/trust.py", "mounts", 'return Bind(path, BUNDLE, "rw"), Bind(path, _SYSTEM, "rw")'),
    ),
    "69 mounts of certificates": mutant(
        "host/test_secrets.py::test_the_certificates_and_their_mounts_cannot_be_changed", CAPABILITIES, FILTER, APART
    ),
    "69 tokens and logins": mutant(
        "host/test_secrets.py::test_tokens_and_logins_are_not_there",
        Edit("walls/sandbox/fitting.py", "fit", "return policy"),
    ),
    "69 values in files": mutant(
        "service/daemon/test_secret_handlers.py::test_no_file_of_the_daemon_contains_a_value",
        Edit("walls/keys/scan.py", "forms", "return ()"),
    ),
    "69 values in the record of decisions": mutant(
        "service/daemon/test_secret_handlers.py::test_no_file_of_the_daemon_contains_a_value", ASKED_WITH_VALUES
    ),
    "69 values in questions and traces": mutant(
        "service/session/test_http_requests.py::test_a_person_allows_a_secret_in_a_body[False]", ASKED_WITH_VALUES
    ),
    "69 values in lists of secrets": mutant(
        "service/daemon/test_secret_handlers.py::test_no_file_of_the_daemon_contains_a_value",
        Edit(
            "walls/keys/session_keys.py",
            "SessionKeys.records",
            """
            from dataclasses import replace
            return [replace(one.record(), source=self._values[one.name]) for one in self._bindings]
            """,
        ),
    ),
    "69 values in errors": mutant(
        f"{KEYS}sources.py::test_an_unsuitable_value_is_refused_and_not_shown",
        Edit("walls/keys/sources.py", "_shown", "return source"),
    ),
    "69 values on two lines": mutant(
        f"{KEYS}sources.py::test_an_unsuitable_value_is_refused_and_not_shown",
        Edit("walls/keys/sources.py", "_checked", 'return value.removesuffix("\\n")'),
    ),
    "69 sources and hosts of secrets": mutant(
        "host/test_checks.py::test_secrets_by_the_names_of_entries_alone",
        Edit(
            "host/checks.py",
            "only_names",
            """
            from cellblock.walls.keys.sources import entries
            names, known = options.get("secrets", []), entries()
            if not isinstance(names, list) or not isinstance(options.get("environment", ""), str):
                return False
            return all(isinstance(name, str) and name.partition("=")[0].partition("@")[0] in known for name in names)
            """,
        ),
    ),
    "69 secrets of weak tokens": mutant(
        "fronts/gateway/test_session_routes.py::test_options_need_all_rights",
        Edit("host/checks.py", "only_names", 'return "secrets" in options'),
    ),
    "69 services of clouds": mutant(
        "tools/mcp/test_named_urls.py::test_servers_elsewhere_name_no_loopback_addresses",
        Edit("tools/mcp/named_urls.py", "NamedUrls._check_address", "pass"),
    ),
    "69 forged answers to logins": mutant(
        "tools/mcp/test_oauth.py::test_a_forged_callback_is_not_the_answer",
        Edit(
            "tools/mcp/oauth_login.py",
            "_Provider._answer",
            """
            answer = await self._ask(self._url, self._listener, lambda _: True)
            given = {name: values[0] for name, values in parse_qs(urlsplit(answer).query).items()}
            return AuthorizationCodeResult(code=given.get("code", ""), state=given.get("state", ""), iss=given.get("iss"))
            """,
        ),
    ),
    "69 other issuers": mutant(
        "tools/mcp/test_oauth.py::test_a_wrong_answer_is_no_login[wrong1-iss mismatch]",
        Edit(
            "tools/mcp/oauth_login.py",
            "_Provider._answer",
            """
            answer = await self._ask(self._url, self._listener, lambda _: True)
            given = {name: values[0] for name, values in parse_qs(urlsplit(answer).query).items()}
            return AuthorizationCodeResult(code=given["code"], state=given["state"], iss=str(self.context.oauth_metadata.issuer))
            """,
        ),
    ),
    "70 tunnels": mutant(
        "walls/egress/test_live.py::test_a_tunnel_to_a_host_that_gets_a_line_is_reset",
        Edit("walls/egress/gate.py", "Gate.note_unjudged", "pass"),
    ),
    "70 hosts without lines": mutant(
        "walls/egress/test_live.py::test_request_lines_come_with_their_hosts_and_go_with_them",
        Edit("walls/egress/live.py", "_hosts_without_lines", "return ()"),
    ),
    "70 long URLs": mutant(
        f"{KEYS}turnkey_link.py::test_the_longest_url_is_judged",
        Edit("walls/egress/paths.py", "LONGEST", "1 << 20"),
    ),
    "70 every host": mutant(
        "walls/egress/test_judge.py::test_every_host_cannot_be_combined_with_lines",
        Edit("walls/egress/live.py", "check_open_hosts", "pass"),
    ),
    "3 mounts": mutant(f"{HERE}system_calls.py::test_a_dangerous_call_is_refused[mount]", CAPABILITIES, FILTER, APART),
    "4 handles": mutant(f"{HERE}system_calls.py::test_a_dangerous_call_is_refused[open_by_handle_at]", CAPABILITIES, FILTER),
    "14 bpf": mutant(f"{HERE}system_calls.py::test_a_dangerous_call_is_refused[splice]", FILTER),
    "8 process 1": mutant(
        f"{HERE}processes.py::test_nothing_is_seen_of_process_1[environ]",
        CAPABILITIES,
        APART,
        Edit("walls/linux/syscall.py", "hide", "pass"),
    ),
    "11 a /proc that is not the session's own": mutant(
        "host/test_launch_failures.py::test_the_weaker_proc_is_had_by_name_and_shows_processes_but_gives_no_power",
        Edit("walls/sandbox/mounts.py", "_show_outer_proc", "move(clone_tree('/proc'), f'.{target}')"),
    ),
    "19 the host's loopback": mutant(
        f"{HERE}network.py::test_the_hosts_loopback_is_not_the_sessions",
        Edit("walls/sandbox/namespaces.py", "_NAMESPACES", "0x3E020000"),  # not the network
        Edit("walls/sandbox/namespaces.py", "_bring_loopback_up", "pass"),
    ),
    "22 the environment": mutant(
        f"{HERE}channel.py::test_the_hosts_environment_and_memory_are_not_in_the_session",
        Edit("walls/sandbox/ground.py", "ENVIRONMENT", '__import__("os").environ.copy()'),
    ),
    "23 addresses": mutant(
        f"{EGRESS}23_addresses_in_binary", Edit("walls/egress/addresses.py", "objection_to", "return None")
    ),
    "24 addresses of names": mutant(f"{EGRESS}24_names_of_forbidden_addresses", CHECKED),
    "24 one lookup": mutant(
        f"{EGRESS}24_rebinding",
        Edit(
            "walls/egress/gate.py", "Gate._first", "return await self._dial((await self._addresses(target))[0], target.port)"
        ),
    ),
    "24 the machine's own": mutant(
        "walls/egress/test_addresses.py::test_the_machines_own", Edit("walls/egress/addresses.py", "own", "return None")
    ),
    "25 labels": mutant(
        f"{EGRESS}25_names_that_have_no_canonical_form", Edit("walls/egress/names.py", "_LABEL", 're.compile(".*", re.DOTALL)')
    ),
    "25 case": mutant(f"{EGRESS}25_one_canonical_form", Edit("walls/egress/names.py", "_folded", "return text")),
    "26 a dot": mutant(
        f"{EGRESS}26_wildcards_end_at_a_dot",
        Edit("walls/egress/rules.py", "Rule.names", "return str(host).endswith(str(self.host or ''))"),
    ),
    "27 ports": mutant(
        "walls/egress/test_rules.py::test_ports", Edit("walls/egress/rules.py", "_covers", "return rule.port in (None, port)")
    ),
    "28 hosts that disagree": mutant(f"{EGRESS}28_hosts_that_disagree", Edit("walls/egress/http.py", "_check_host", "pass")),
    "28 two framings": mutant(
        f"{EGRESS}28_heads_that_could_be_framed_in_two_ways", Edit("walls/egress/http.py", "check_framing", "pass")
    ),
    "29 every request is judged": mutant(f"{EGRESS}29_redirects_are_the_clients_to_follow", ASKED),
    "30 connections": mutant(
        "walls/egress/test_limits.py::test_30_more_connections_than_allowed",
        Edit("walls/egress/proxy.py", "EgressProxy._is_full", "return False"),
    ),
    "30 headers": mutant(
        "walls/egress/test_limits.py::test_30_endless_header",
        Edit(
            "walls/egress/proxy_connection.py",
            "Connection._reader",
            "return h11.Connection(h11.SERVER, max_incomplete_event_size=2**40)",
        ),
    ),
    "30 taking turns": mutant(
        "walls/egress/test_turns.py::test_tiny_chunks_let_the_loop_go_on[response]",
        Edit("common/turns.py", "Turns.give_way", "return"),
    ),
    "30 interim responses": mutant(
        "walls/egress/test_turns.py::test_a_response_that_takes_long_to_read_is_refused[interim responses]",
        Edit("walls/egress/exchange.py", "Exchange._too_many_interim", "return False"),
    ),
    "30 header lines": mutant(
        "walls/egress/test_turns.py::test_a_request_with_too_many_header_lines_is_refused",
        Edit("walls/egress/http.py", "check_head", "pass"),
    ),
    "30 trailers": mutant(
        "walls/egress/test_turns.py::test_trailers_without_end_are_refused",
        Edit("walls/egress/http.py", "check_between_chunks", "pass"),
    ),
    "24 addresses without end": mutant(
        "walls/egress/test_gate.py::test_few_addresses_of_a_name_are_considered_however_many_it_has",
        Edit("walls/egress/gate.py", "_considered", "return [unmapped(ip_address(text)) for text in found]"),
    ),
    "30 questions": mutant(
        "walls/egress/test_gate.py::test_a_flood_of_hosts_to_ask_about_leaves_few_questions_and_clear_denials",
        Edit("walls/egress/gate.py", "Gate._has_many_questions", "return False"),
    ),
    "32 the protocol": mutant(
        f"{HERE}channel.py::test_a_session_that_breaks_its_channel_is_killed_and_no_other[garbage]", CONDEMNED
    ),
    "32 descriptors": mutant(
        f"{HERE}channel.py::test_the_system_refuses_descriptors_that_are_sent_to_the_host",
        Edit("host/launch/launcher.py", "refuse_descriptors", "pass"),
    ),
    "32 connections that linger": mutant(
        f"{HERE}channel.py::test_connections_do_not_linger", Edit("walls/linux/seccomp.py", "lingering", "return ()")
    ),
    "45 what is not measured": mutant(
        "host/kernels/test_memory.py::test_a_session_whose_memory_cannot_be_measured_ends",
        Edit("host/kernels/memory.py", "MemoryWatch._expect_answer", "pass"),
    ),
    "45 what is no kernel's": mutant(
        "host/kernels/test_memory.py::test_what_is_no_kernels_counts_for_each_that_shares_an_init",
        Edit("launch/init/census.py", "Census._counted", "return self._own[seat]"),
    ),
    "48 one copy for each process": mutant(
        "launch/init/test_parked.py::test_a_process_is_one_copy_at_most",
        Edit("launch/init/parked.py", "Parked._is_new", "return _is_child(pid)"),
    ),
    "48 copies that talk": mutant(
        "launch/init/test_parked.py::test_a_copy_that_is_dropped_cannot_talk_without_end",
        Edit("launch/init/parked.py", "_MOST_SAID", "10**9"),
    ),
    "48 copies that nobody wants": mutant(
        f"{HERE}channel.py::test_a_process_that_says_it_is_a_copy_is_not_spared",
        Edit("launch/init/serving.py", "Init._copy_made", "self._tell_family(Copied(number))"),
        Edit("launch/init/parked.py", "Parked.end_silent", "pass"),
    ),
    "32 floods": mutant(
        "host/test_turns.py::test_a_flood_of_frames_lets_the_loop_go_on",
        Edit("host/kernels/channel.py", "Channel._go_on", "self._take_received(float('inf'))"),
    ),
    "33 turns": mutant(
        f"{HERE}channel.py::test_a_session_that_breaks_its_channel_is_killed_and_no_other[a forged ready]",
        Edit(
            "wire/protocol.py",
            "Conversation._step",
            "return TRANSITIONS[self.state].get((sender, message.type), self.state)",
        ),
    ),
    "34 a closed channel": mutant(
        f"{HERE}channel.py::test_a_session_that_breaks_its_channel_is_killed_and_no_other[a channel shut down]", CONDEMNED
    ),
    "35 daemons": mutant(
        f"{HERE}processes.py::test_a_daemon_ends_with_its_session",
        REAPER,
        Edit("launch/zygote/fork_server.py", "_Zygote._kill", "pass"),
    ),
    "36 a host that is killed": mutant(
        f"{HERE}processes.py::test_everything_ends_when_the_host_is_killed",
        REAPER,
        Edit("launch/zygote/fork_server.py", "_Zygote._end", "os._exit(0)"),
    ),
    "37 text is bounded": mutant(
        "host/output/test_collect.py::test_memory_for_text_is_bounded_whatever_is_written",
        Edit("host/output/collect.py", "Collector._add_to_tail", "self._tail.append(_Text(name, data))"),
    ),
    "37 files are bounded": mutant(
        "host/output/test_spill.py::test_the_files_of_a_cell_have_a_size_together",
        Edit("host/output/spill.py", "Spills.take", "return size"),
    ),
    "37 so is their number": mutant(
        "host/output/test_spill.py::test_a_cell_has_a_number_of_files", Edit("host/output/spill.py", "_FILES", "10**6")
    ),
    "37 and what a session keeps of them": mutant(
        "host/output/test_spill.py::test_the_oldest_files_of_a_session_are_removed_and_nothing_else",
        Edit("host/output/spill.py", "SpillDirectory.keep", "pass"),
    ),
    "37 and what waits for the disk": mutant(
        "host/output/test_spill.py::test_a_disk_that_stalls_holds_up_neither_the_loop_nor_the_result",
        Edit("host/output/spill.py", "Spills.fits", "return True"),
    ),
    "37 for which the kernel waits": mutant(
        "host/kernels/test_kernel.py::test_the_kernel_waits_for_a_slow_disk_and_nobody_else_does",
        Edit("host/kernels/channel.py", "Channel._wait_if_behind", "pass"),
    ),
    "37 readers that are slow": mutant(
        "host/kernels/test_cell.py::test_a_slow_reader_makes_the_kernel_wait_until_half_is_read",
        Edit("host/kernels/cell.py", "CellEvents._queue", "self._events.append((event, size))\nself._queued += size"),
    ),
    "37 readers of a cell that is being stopped": mutant(
        "host/kernels/test_cell.py::test_a_cell_that_is_being_stopped_waits_for_no_reader_and_queues_no_more",
        Edit("host/kernels/cell.py", "CellEvents.release", "pass"),
    ),
    "38 terminals": mutant(
        "common/test_terminal.py::test_sequences_are_shown_and_not_obeyed",
        Edit("common/terminal.py", "_escaped", "return found.group()"),
    ),
    "38 names": mutant(
        "common/test_terminal.py::test_the_terminal_front_shows_names_as_names",
        Edit("fronts/cli/machine.py", "_name", "return text"),
    ),
    "38 live output": mutant(
        "fronts/cli/test_live.py::test_output_is_shown_as_it_comes_and_nothing_in_it_steers_the_terminal",
        Edit("fronts/cli/live.py", "_shown", "return text"),
    ),
    "38 decisions that nobody saw": mutant(
        "fronts/cli/test_prompts.py::test_what_was_typed_before_a_call_was_shown_decides_nothing",
        Edit("fronts/cli/prompts.py", "Questions._forget_what_was_typed", "pass"),
    ),
    "38 tables": mutant(
        "fronts/cli/test_file_commands.py::test_names_and_contents_do_not_steer_the_terminal",
        Edit("fronts/cli/output.py", "_cell", "from rich.text import Text; return Text(str(value))"),
    ),
    "39 values are bounded": mutant(
        "host/output/test_collect.py::test_values_that_do_not_fit_are_left_out",
        Edit("host/output/collect.py", "Collector._fits", "return True"),
    ),
    "39 wide characters": mutant(
        "host/output/test_collect.py::test_text_counts_with_what_it_takes_in_memory",
        Edit("host/output/collect.py", "Cost.of", "return kept"),
    ),
    "39 updates are bounded": mutant(
        "host/output/test_collect.py::test_an_update_counts_in_every_place_and_is_made_in_one",
        Edit("host/output/collect.py", "Collector._fits", "return True"),
    ),
    "39 errors are bounded": mutant(
        "wire/test_message_codec.py::test_an_error_is_not_larger_than_the_host_decodes_in_one_turn",
        Edit("wire/message_codec.py", "_check_total", "pass"),
    ),
    "39 items are counted": mutant(
        "wire/test_message_codec.py::test_the_arguments_of_an_installation_have_a_limit",
        Edit("wire/message_codec.py", "_check_sizes", "pass"),
    ),
    "39 numbers and texts are bounded": mutant(
        "wire/test_message_codec.py::test_a_string_in_a_header_has_a_limit[mime]",
        Edit("wire/codec.py", "_limited", "return decoder(hint)"),
    ),
    "40 archives": mutant(
        "host/files/test_archive.py::test_a_hostile_member_has_the_whole_archive_refused",
        Edit("host/files/archive.py", "TarReader._parts", 'return tuple(part for part in name.split("/") if part)'),
    ),
    "41 links": mutant(
        f"{FILES}a_planted_link_is_refused_as_such_by_every_operation", Edit("host/files/beneath.py", "_RESOLVE", "0")
    ),
    "42 pipes": mutant(
        f"{FILES}a_fifo_and_a_socket_are_refused_at_once", Edit("host/files/beneath.py", "check_regular", "pass")
    ),
    "43 submodules": mutant(
        f"{HERE}planting.py::test_git_at_the_top_runs_nothing_of_a_submodule[vendor/sub]",
        Edit("walls/sandbox/repositories.py", "find_repositories", "return []"),
    ),
    "1 a link in the place of a secret": mutant(
        f"{HERE}workspaces.py::test_a_link_in_the_place_of_a_secret_takes_nothing_from_the_next_session[/usr/lib]",
        Edit("walls/sandbox/covers.py", "Covers._end_of_masked_link", "return self._resolved.get(target, target)"),
    ),
    "6 links of sessions": mutant(
        f"{HERE}workspaces.py::test_a_link_that_a_session_made_does_not_choose_the_next_workspace",
        Edit("host/distrusted.py", "check_links", "pass"),
    ),
    "6 links of sessions of other programs": mutant(
        "host/test_distrusted.py::test_a_link_of_another_programs_session_is_not_followed",
        Edit("host/distrusted.py", "_is_recorded", "return False"),
    ),
    "32 threads that wait for answers": mutant(
        f"{LIFE}repeated_questions_leave_the_programs_own_threads_alone", Edit("host/kernels/answerers.py", "_MOST", "10**6")
    ),
    "44 callbacks that wait for themselves": mutant(
        f"{LIFE}a_callback_that_executes_in_the_session_that_waits_for_it_is_told_so",
        Edit("host/kernels/cells.py", "Cells._check_not_answering", "pass"),
    ),
    "36 launchers that do not answer": mutant(
        "host/launch/test_launchers.py::test_a_zygote_that_is_stopped_is_replaced_and_its_kernels_live_on",
        Edit("host/launch/launchers.py", "Launchers.retire", "pass"),
    ),
    "39 frames of Python objects": mutant(
        "wire/values/test_tables.py::test_a_frame_of_too_many_python_objects_is_refused_before_they_are_made",
        Edit("wire/values/tables.py", "_check_objects", "pass"),
    ),
    "33 tiny chunks of a stream": mutant(
        "host/kernels/test_cell.py::test_a_flood_of_tiny_chunks_makes_the_kernel_wait_as_well",
        Edit("host/kernels/cell.py", "_CHUNK", "0"),
    ),
    "1 names that a bind brings": mutant(
        "walls/sandbox/test_covers.py::test_what_is_bound_from_elsewhere_is_not_missing",
        Edit("walls/sandbox/covers.py", "Covers._made_by_binds", "return set()"),
    ),
    "36 a close that is cancelled": mutant(
        f"{LIFE}a_close_that_is_cancelled_anywhere_is_completed[zygote]",
        Edit("host/closing.py", "Closing.finish", "self._task = self._task or asyncio.create_task(close())\nawait self._task"),
    ),
    "36 groups of launches that fail": mutant(
        "host/launch/test_launcher.py::test_a_launch_that_fails_leaves_no_control_group",
        Edit("host/launch/launcher.py", "_give_back", "pass"),
    ),
    "36 old failures": mutant(
        "host/kernels/test_kernel_slot.py::test_a_failure_that_nobody_waited_for_is_not_raised_to_a_later_cell",
        Edit("host/kernels/kernel_slot.py", "KernelSlot._forget", "pass"),
    ),
    "36 what is stopped": mutant(
        "launch/init/test_init.py::test_a_stopped_init_ends_with_whom_it_belongs_to[spawn-host-none]",
        Edit("launch/init/processes.py", "resume_after_parent", "pass"),
    ),
    "5 attributes of files": mutant(
        f"{HERE}system_calls.py::test_attributes_of_files_that_outlive_the_session_cannot_be_set",
        Edit("walls/linux/seccomp.py", "_file_commands", "return ()"),
    ),
    "5 access lists": mutant(
        f"{HERE}system_calls.py::test_files_get_no_attributes[system.posix_acl_default]",
        Edit("walls/linux/seccomp.py", "ATTRIBUTES", '(Conditional("setxattr fsetxattr", "", (), ALLOW),)'),
    ),
    "14 options of prctl": mutant(
        f"{HERE}system_calls.py::test_dangerous_options_of_prctl_are_refused",
        Edit("walls/linux/seccomp.py", "_prctl_options", "return (((), ALLOW),)"),
    ),
    "44 the last rung": mutant(
        f"{HERE}processes.py::test_code_that_will_not_stop_is_killed_at_the_deadline[signals ignored]",
        Edit("host/kernels/stopping.py", "_LADDER", '(("interrupted", Kernel.interrupt, 1.0),)'),
        Edit("host/kernels/kernel.py", "Kernel.abandon", "pass"),
    ),
    "41 links to where the host writes": mutant(
        f"{HERE}files.py::test_what_the_host_writes_follows_no_link_of_the_session[at work]",
        Edit(
            "host/files/beneath.py",
            "create_file",
            "with held(os.open(directory, os.O_RDONLY)) as place:\n    return os.open(name, CREATE, 0o666, dir_fd=place)",
        ),
    ),
    "45 all processes together": mutant(
        f"{HERE}memory.py::test_a_session_over_its_memory_dies_and_its_result_names_the_limit[over children]", CONDEMNED
    ),
    "45 buffers of sockets": mutant(
        f"{HERE}memory.py::test_a_session_over_its_memory_dies_and_its_result_names_the_limit[in sockets]",
        Edit("launch/init/sockets.py", "buffered", "return 0"),
    ),
    "45 limits of sockets": mutant(
        "launch/init/test_sockets.py::test_buffers_are_never_larger_than_the_estimate",
        Edit("launch/init/sockets.py", "_limit", "return -_ONE_MORE // 2"),
    ),
    "45 shared memory and queues of System V": mutant(
        f"{HERE}memory.py::test_a_session_over_its_memory_dies_and_its_result_names_the_limit[in segments]",
        Edit("launch/init/system_v.py", "held", "return 0"),
    ),
    "45 inotify": mutant(
        f"{HERE}system_calls.py::test_watches_and_pending_signals_are_few", Edit("walls/sandbox/plan.py", "_INOTIFY", "()")
    ),
    "45 objects of the Linux kernel's": mutant(
        "launch/init/test_kernel_objects.py::test_what_a_process_has_too_many_of_is_named[file locks]",
        Edit("launch/init/kernel_objects.py", "KernelObjects.look", "pass"),
    ),
    "45 descriptors in flight": mutant(
        f"{COUNTERS}limits_of_sessions_are_below_those_of_trusted_processes[4096]",
        Edit("host/host_kernels.py", "_make_room_for", "pass"),
    ),
    "45 limits of open files": mutant(
        f"{COUNTERS}limits_of_sessions_are_below_those_of_trusted_processes[1048576]",
        Edit("walls/sandbox/confine.py", "_part_of", "return open_files"),
    ),
    "45 terminals": mutant(
        f"{COUNTERS}the_terminals_of_a_session_are_few", Edit("walls/sandbox/mounts.py", "_TERMINALS", "4096")
    ),
    "45 asynchronous I/O": mutant(f"{COUNTERS}what_the_machine_has_one_maximum_for_does_not_exist", FILTER),
    "45 pipes": mutant(f"{COUNTERS}pipes_are_not_made_larger", Edit("walls/linux/seccomp.py", "large_pipes", "return ()")),
    "45 queues of the user": mutant(f"{COUNTERS}a_queue_of_messages_is_not_all_that_the_user_may_have", MEMORY),
    "45 maxima of namespaces": mutant(
        "walls/sandbox/test_namespaces.py::test_what_a_user_namespace_uses_leaves_a_part_to_its_user",
        Edit("walls/sandbox/namespaces.py", "_leave_a_part", "return []"),
    ),
    "45 instances of inotify": mutant(
        "walls/sandbox/test_namespaces.py::test_half_of_inotify_is_left_to_the_user",
        Edit("walls/sandbox/namespaces.py", "_share_inotify", "pass"),
    ),
    "45 what hides": mutant(
        f"{UNDO}memory_of_a_process_that_hides_counts",
        Edit("launch/init/processes.py", "_in_full", "return 0"),
    ),
    "45 objects of what hides": mutant(
        "launch/init/test_kernel_objects.py::test_what_hides_is_ended_when_the_machines_kernel_memory_has_grown",
        Edit("launch/init/kernel_objects.py", "_HIDDEN_GROWTH", "1 << 62"),
    ),
    "45 page tables": mutant(
        f"{HERE}memory.py::test_a_session_over_its_memory_dies_and_its_result_names_the_limit[in page tables]",
        Edit("launch/init/processes.py", "_kept_by_kernel", "return 0"),
    ),
    "45 between short cells": mutant(
        f"{HERE}memory.py::test_short_cells_do_not_hide_what_grows_behind_them",
        Edit("host/kernels/memory.py", "MemoryWatch.look_soon", "pass"),
    ),
    "45 what does not go with a kernel": mutant(
        f"{HERE}memory.py::test_a_session_over_its_memory_dies_and_its_result_names_the_limit[in files]",
        Edit("host/kernels/memory.py", "MemoryWatch.look_first", "pass"),
    ),
    "45 copies": mutant(
        f"{HERE}memory.py::test_copies_of_a_session_count_and_it_goes_on_without_them",
        Edit("launch/init/processes.py", "memory_of_copies", "return 0"),
    ),
    "45 one process": mutant(f"{HERE}memory.py::test_memory_of_one_process_is_an_error_that_names_the_limit", MEMORY),
    "49 servers that nobody registered": mutant(
        f"{HERE}tools.py::test_what_a_session_may_not_ask_is_refused_before_anybody_is_asked",
        Edit(
            "tools/mcp/lease.py",
            "Lease.caller",
            "return partial(self._shared.use((self._find(server) or '', server), self).call, server)",
        ),
    ),
    "49 servers of another workspace": mutant(
        f"{HERE}tools.py::test_what_a_session_may_not_ask_is_refused_before_anybody_is_asked",
        Edit("tools/registry/servers.py", "_is_within", "return True"),
    ),
    "49 parameters": mutant(
        f"{HERE}tools.py::test_what_a_session_may_not_ask_is_refused_before_anybody_is_asked",
        Edit("tools/serving/tool_app.py", "_check_params", "pass"),
    ),
    "49 directories": mutant(
        "test_ipybox_programs.py::test_what_code_names_itself_cannot_be_called",
        Edit("tools/registry/servers.py", "_is_within", "return True"),
    ),
    "49 tokens": mutant(
        f"{HERE}tools.py::test_another_sessions_tool_port_wants_its_token",
        Edit("tools/serving/tool_app.py", "Guard._check_token", "pass"),
    ),
    "49 what was accepted for one call": mutant(
        f"{HERE}tools.py::test_what_was_approved_is_what_the_server_gets",
        Edit("tools/approvals/broker.py", "_keys", 'return {"tool": (call.tool,), "call": (call.tool,)}'),
    ),
    "49 tools that change": mutant(
        "tools/serving/test_tool_app.py::test_a_tool_that_has_changed_is_decided_about_again_before_it_is_called",
        Edit("tools/serving/tool_app.py", "_checker", "return lambda now: None"),
    ),
    "49 tools that are not there": mutant(
        "tools/serving/test_tool_server.py::test_a_tool_that_its_server_does_not_have_is_refused",
        Edit("tools/serving/tool_server.py", "_check_listed", "return lambda now: None"),
    ),
    "49 packages that a cell edited": mutant(
        "tools/apigen/test_package.py::test_a_package_that_was_edited_is_written_again[vouched]",
        Edit("tools/apigen/package.py", "_is_written", "return name in os.listdir(root)"),
    ),
    "49 deep trees": mutant(
        "tools/apigen/test_package.py::test_a_deep_tree_in_the_way_stops_nothing",
        Edit("tools/apigen/package.py", "_remove", '__import__("shutil").rmtree(name, dir_fd=directory)'),
    ),
    "49 what cannot be seen": mutant(
        "tools/approvals/test_request.py::test_what_cannot_be_seen_is_escaped",
        Edit("tools/approvals/request.py", "visible", "return text"),
    ),
    "54 long decisions": mutant(
        "tools/approvals/test_broker.py::test_decisions_about_long_arguments_take_turns",
        Edit("tools/approvals/broker.py", "Broker._verdict", "return decide(self.rules, call)"),
    ),
    "54 schemas of servers": mutant(
        "tools/mcp/test_web.py::test_the_schema_of_a_server_is_not_run_in_the_loop",
        Edit("tools/mcp/dialogue.py", "_trust_no_schema", "pass"),
    ),
    "54 floods of servers": mutant(
        "tools/mcp/test_servers.py::test_a_server_that_floods_its_output_holds_up_nobody",
        Edit("tools/mcp/stdio.py", "StdioTransport._give_way", "pass"),
    ),
    "54 descriptors from servers": mutant(
        "tools/mcp/test_servers.py::test_a_server_cannot_send_descriptors_back_on_its_input",
        Edit(
            "tools/mcp/server_input.py",
            "ServerInput.open",
            "import socket\n"
            "ours, theirs = socket.socketpair()\n"
            "return (await asyncio.get_running_loop().connect_write_pipe(cls, ours))[1], theirs",
        ),
    ),
    "54 large events": mutant(
        "service/store/test_beside.py::test_a_disk_that_stalls_holds_up_nothing_but_the_event_that_is_written",
        Edit("service/store/beside.py", "Beside.write_ahead", "return None"),
    ),
    "54 notifications of servers": mutant(
        "tools/mcp/test_servers.py::test_notifications_start_no_tasks",
        Edit("tools/mcp/dialogue.py", "Dialogue._hear", "return False"),
    ),
    "54 requests of servers": mutant(
        "tools/mcp/test_servers.py::test_a_server_that_asks_without_end_and_reads_no_answer_is_ended",
        Edit("tools/mcp/jsonrpc.py", "Requests._is_too_much", "return False"),
    ),
    "54 cookies": mutant(
        "tools/mcp/test_web_floods.py::test_the_head_of_a_response_has_limits[cookies-150-more than 100 cookies]",
        Edit("tools/mcp/web.py", "_Client._refuse", "pass"),
    ),
    "54 followers of a flood": mutant(
        "service/daemon/test_floods.py::test_those_who_follow_a_flood_of_events_take_turns",
        Edit("common/turns.py", "Turns.give_way", "return"),
    ),
    "54 lists of executions": mutant(
        "service/daemon/test_floods.py::test_a_list_of_executions_has_an_end",
        Edit("service/store/journal.py", "_listed", "return wanted"),
    ),
    "54 values": mutant(
        "tools/mcp/test_large.py::test_values_have_limits[a result]",
        Edit("tools/mcp/large.py", "_check", "pass"),
    ),
    "54 large results": mutant(
        "tools/mcp/test_web_floods.py::test_a_large_result_is_not_decoded_here[mcp-values]",
        Edit("tools/mcp/large.py", "is_large", "return False"),
    ),
    "54 large results that nobody takes": mutant(
        "tools/mcp/test_large.py::test_results_that_nobody_takes_are_not_kept_for_ever",
        Edit("tools/mcp/large.py", "LargeResults._keep", "self._kept[token] = value"),
    ),
    "54 turns of HTTP": mutant(
        "tools/mcp/test_web_floods.py::test_a_body_in_tiny_chunks_takes_turns",
        Edit("tools/mcp/paced.py", "_Paced.read", "return await self._stream.read(max_bytes, timeout)"),
    ),
    "54 heads of responses": mutant(
        "tools/mcp/test_paced.py::test_a_head_has_limits",
        Edit("tools/mcp/paced.py", "Heads._check", "pass"),
    ),
    "54 events": mutant(
        "tools/mcp/test_events.py::test_an_event_of_too_many_lines_is_refused",
        Edit("tools/mcp/events.py", "Events._check", "pass"),
    ),
    "54 settings": mutant(
        "walls/sandbox/test_settings.py::test_a_file_of_settings_has_bounds[size]",
        Edit("walls/sandbox/settings.py", "_read", "return path.read_bytes()"),
    ),
    "54 patterns of rules": mutant(
        "tools/approvals/test_rules.py::test_a_pattern_that_is_too_long_is_refused_when_it_is_read[tool]",
        Edit("tools/approvals/rules.py", "_check_pattern", "pass"),
    ),
    "54 items of a policy": mutant(
        "walls/sandbox/test_settings.py::test_a_file_of_settings_has_bounds[count]",
        Edit("walls/sandbox/settings.py", "_check_count", "pass"),
    ),
    "54 lists of tools": mutant(
        "tools/mcp/test_servers.py::test_lists_are_bounded_in_bytes",
        Edit("tools/mcp/dialogue.py", "_check_list", "return size"),
    ),
    "54 references": mutant(
        "tools/apigen/test_schema.py::test_a_reference_that_names_nothing_looks_at_few_definitions",
        Edit("tools/apigen/schema.py", "_MOST_NAMED", "10**9"),
    ),
    "54 requests that are over": mutant(
        "tools/serving/test_approval_channel.py::"
        "test_large_requests_that_are_taken_back_are_not_kept_for_a_client_that_does_not_read",
        Edit("tools/serving/approval_channel.py", "ApprovalChannel._over", "del self._pending[request.id]"),
    ),
    "54 tiny frames": mutant(
        "tools/serving/test_websocket.py::test_a_flood_of_tiny_frames_lets_the_loop_go_on[pings]",
        Edit("tools/serving/websocket.py", "_PIECE", "2**30"),
    ),
    "54 denials": mutant(
        "tools/registry/test_approvals.py::test_denials_that_come_by_the_thousand_are_counted",
        Edit("tools/registry/approvals.py", "_Denials.admits", "return True"),
    ),
    "54 payloads": mutant(
        "tools/registry/test_approvals.py::test_payloads_of_a_session_have_a_limit_together",
        Edit("tools/registry/approvals.py", "_payload_limit", "return MAX_PAYLOAD"),
    ),
    "50 programs": mutant(
        f"{HERE}programs.py::test_nothing_is_executed_in_any_way[zygote]",
        Edit("walls/sandbox/confine.py", "_forbid_programs", "pass"),
    ),
    "52 orders to pip": mutant(
        f"{HERE}packages.py::test_an_approval_of_pip_runs_pip_and_nothing_that_was_planted",
        Edit("host/environments/sandbox.py", "Sandboxes._sandbox", "yield kernel.control"),
        Edit("host/environments/sandbox.py", "_changes", "return {}"),
        Edit("worker/resolve_packages.py", "_QUIET", '("--no-input",)'),
    ),
    "52 a sandbox for pip": mutant(
        f"{HERE}packages.py::test_code_of_the_session_finds_no_password_and_no_way_to_the_index",
        Edit("host/environments/sandbox.py", "Sandboxes._sandbox", "yield kernel.control"),
    ),
    "52 GET only": mutant(
        "walls/packages/test_mirror.py::test_nothing_else_reaches_the_index",
        Edit("walls/packages/mirror.py", "_check_fetches", "pass"),
    ),
    "52 projects and files only": mutant(
        "walls/packages/test_mirror.py::test_nothing_else_reaches_the_index",
        Edit("walls/packages/mirror.py", "_PROJECT", 're.compile(".+")'),
    ),
    "52 files that pages name": mutant(
        "walls/packages/test_mirror.py::test_nothing_else_reaches_the_index",
        Edit("walls/packages/mirror.py", "PackageMirror._file", 'return f"{source}/../../{name}", ""'),
    ),
    "52 credentials": mutant(
        "walls/packages/test_mirror.py::test_credentials_do_not_follow_a_redirect_to_another_host",
        Edit("walls/packages/fetch.py", "_origin", 'return ""'),
    ),
    "52 packages are read-only": mutant(
        f"{HERE}packages.py::test_packages_are_not_the_sessions_to_write",
        Edit("host/packages.py", "_MODE", '"rw"'),
    ),
    "52 how much": mutant(
        f"{HERE}packages.py::test_a_build_that_fills_the_disk_is_stopped",
        Edit("walls/packages/space.py", "excess", "return None"),
    ),
    "117 one hash": mutant(
        f"{HERE}packages.py::test_another_archive_than_the_index_names_is_refused",
        Edit("walls/packages/pages.py", "File.sha256", 'return ""'),
    ),
    "117 only what unpackers write": mutant(
        "host/environments/test_linking.py::test_anything_else_is_refused[link]",
        Edit("host/environments/linking.py", "check_tree", "return 0, 0"),
    ),
    "117 no way out of a wheel": mutant(
        "worker/test_unpack_wheel.py::test_no_file_leaves_the_directory[../evil.py]",
        Edit("worker/unpack_wheel.py", "_checked_path", "return info.filename"),
    ),
    "117 secrets of a session": mutant(
        f"{HERE}packages.py::test_a_build_sees_nothing_of_the_session",
        Edit("host/environments/sandbox.py", "Step.sees_session", "True"),
    ),
    "52 forbidden": mutant(
        f"{HERE}packages.py::test_a_policy_limits_and_forbids_packages", Edit("host/packages.py", "_check_allowed", "pass")
    ),
    "51 the state": mutant(
        f"{HERE}servers.py::test_a_server_that_may_read_everything_does_not_read_the_state",
        Edit(
            "walls/sandbox/fitting.py",
            "fit",
            """
            files = policy.filesystem
            own = (*probe.own_directories(), os.path.realpath(config.state_directory()))
            return replace(policy, filesystem=replace(files, deny_write=(*files.deny_write, *own)))
            """,
        ),
    ),
    "51 what is around the state": mutant(
        f"{HERE}servers.py::test_a_server_that_may_read_everything_does_not_read_the_state",
        Edit(
            "walls/sandbox/fitting.py",
            "fit",
            """
            files = policy.filesystem
            own = os.path.realpath(config.state_directory())
            return replace(policy, filesystem=replace(files, deny_read=(*files.deny_read, own)))
            """,
        ),
    ),
    "43 around the settings": mutant(
        "host/test_checks.py::test_a_session_cannot_work_around_the_settings",
        Edit("host/checks.py", "check_state_apart", "pass"),
    ),
    "43 settings that others can write": mutant(
        "service/test_settings.py::test_a_file_that_others_can_write_is_refused",
        Edit("common/config.py", "_check_owner", "pass"),
    ),
    "51 / is denied": mutant(
        f"{HERE}servers.py::test_a_server_sees_nothing_of_the_host",
        Edit("walls/sandbox/policy.py", "Filesystem.everything", 'return "/" in self.read'),
    ),
    "51 what is allowed in what is denied, and no more": mutant(
        f"{HERE}files.py::test_in_what_is_denied_there_is_what_is_allowed_again_and_nothing_else", READ_ONLY
    ),
    "56 .env read again": mutant(
        f"{HERE}landlock.py::test_variables_of_servers_that_a_session_plants_are_not_read",
        Edit("common/config.py", "keep_variables", "pass"),
    ),
    "55 srt as root": mutant(
        f"{HERE}srt.py::test_no_setting_of_the_kernel_can_be_changed",
        Edit("walls/sandbox/mounts.py", "keep_kernel_settings", "pass"),
    ),
    "51 a server is confined": mutant(
        f"{HERE}servers.py::test_a_server_has_three_descriptors_no_privileges_and_a_filter",
        Edit("walls/sandbox/confine.py", "confine", "pass"),
    ),
    "51 descriptors": mutant(
        f"{HERE}servers.py::test_a_server_has_three_descriptors_no_privileges_and_a_filter",
        Edit("launch/init/processes.py", "close_descriptors", "pass"),
    ),
    "51 a keeper that is killed": mutant(
        f"{HERE}servers.py::test_nothing_of_a_server_outlives_its_stop[keeper]",
        Edit("launch/init/processes.py", "die_with_parent", "pass"),
    ),
    "43 variables of servers": mutant(
        f"{HERE}planting.py::test_variables_of_servers_cannot_be_planted[app]",
        Edit("walls/sandbox/fitting.py", "_settings", "return ()"),
    ),
    "43 variables where nothing is kept": mutant(
        f"{HERE}planting.py::test_variables_that_code_makes_where_nothing_is_kept_are_not_read",
        Edit("common/config.py", "keep_variables", "pass"),
    ),
    "43 names in a project": mutant(
        f"{HERE}planting.py::test_what_runs_code_cannot_be_made_in_a_project",
        Edit("walls/sandbox/placeholders.py", "is_project", "return False"),
    ),
    "43 names of an idle session": mutant(
        f"{HERE}planting.py::test_what_runs_while_an_idle_session_has_no_placeholders_creates_nothing",
        Edit("walls/sandbox/covers.py", "close_directory", "return []"),
    ),
    "43 what the user makes meanwhile": mutant(
        f"{HERE}planting.py::test_what_the_user_makes_while_a_session_is_idle_is_protected",
        Edit("walls/sandbox/covers.py", "Covers.cover_all", "pass"),
    ),
    "51 placeholders": mutant(
        "tools/mcp/test_sandboxed.py::test_no_sandboxed_server_outlives_its_host[host]",
        Edit("walls/sandbox/placeholders.py", "Hold.release", "pass"),
    ),
    "51 rules": mutant(f"{HERE}servers.py::test_a_server_reaches_what_its_policy_names_and_nothing_else", ASKED, CHECKED),
    "51 memory": mutant(f"{HERE}servers.py::test_a_server_over_its_memory_is_told_so", MEMORY),
    "51 no sandbox, no server": mutant(
        "tools/mcp/test_sandboxed.py::test_no_server_starts_where_no_sandbox_can_be_made",
        Edit(
            "launch/keeper/sandboxed.py",
            "_fork_in_vain",
            """
            import sys
            pid = os.fork()
            if pid == 0:
                processes.execute(sys.argv[3:])
            return pid
            """,
        ),
    ),
    "56 files": mutant(
        f"{HERE}landlock.py::test_files_outside_cannot_be_opened_listed_or_made[abi 6]",
        Edit("walls/sandbox/confine.py", "_restrict_files", "pass"),
    ),
    "56 links": mutant(
        "walls/linux/test_landlock.py::test_a_link_is_not_followed_to_what_is_to_be_allowed",
        Edit("walls/linux/landlock.py", "_RESOLVE", "0"),
    ),
    "56 secrets": mutant(
        "walls/sandbox/test_landlock_rules.py::test_a_secret_in_what_is_writable_is_refused_if_it_exists[.env]",
        Edit("walls/sandbox/landlock_rules.py", "_check_apart", "pass"),
    ),
    "56 variables of servers": mutant(
        f"{HERE}landlock.py::test_variables_of_servers_that_a_session_plants_are_not_read",
        Edit("common/config.py", "keep_variables", "pass"),
    ),
    "56 signals": mutant(
        f"{HERE}landlock.py::test_no_other_process_is_signalled_limited_traced_or_read[abi 6]",
        Edit("walls/linux/landlock.py", "_scopes", "return 0"),
    ),
    "56 signals before version 6": mutant(
        f"{HERE}landlock.py::test_no_signal_gets_out_in_any_way[abi 1]", Edit("walls/linux/undivided.py", "SIGNALS", "()")
    ),
    "56 whom init signals": mutant(
        f"{HERE}landlock.py::test_no_signal_gets_out_in_any_way[abi 1]",
        Edit("launch/init/signalling.py", "_check_below", "pass"),
    ),
    "56 truncation before version 3": mutant(
        f"{HERE}landlock.py::test_what_can_only_be_read_is_not_truncated[abi 1]",
        Edit("walls/linux/undivided.py", "TRUNCATION", "()"),
    ),
    "56 truncation by reading, before version 3": mutant(
        f"{HERE}landlock.py::test_what_can_only_be_read_is_not_truncated[abi 1]",
        Edit("walls/linux/undivided.py", "_truncating", "return ()"),
    ),
    "56 what init truncates": mutant(
        f"{HERE}landlock.py::test_what_can_only_be_read_is_not_truncated[abi 1]",
        Edit("launch/init/supervisor.py", "Supervisor._check_own", "pass"),
    ),
    "56 opened for commands": mutant(
        f"{HERE}landlock.py::test_nothing_is_opened_for_commands_only[abi 1]",
        Edit("walls/linux/undivided.py", "_neither", "return ()"),
    ),
    "54 leases": mutant(
        f"{HERE}system_calls.py::test_the_host_waits_for_nobody_to_open_a_file",
        Edit("walls/linux/seccomp.py", "leases", "return ()"),
    ),
    "56 limits and priorities": mutant(
        f"{HERE}landlock.py::test_no_other_process_is_signalled_limited_traced_or_read[abi 6]",
        Edit("walls/linux/undivided.py", "OTHERS", "()"),
    ),
    "56 attributes": mutant(
        f"{HERE}landlock.py::test_attributes_of_files_outside_stay[abi 6-os.chmod, it, 0o777]",
        Edit("walls/linux/undivided.py", "ATTRIBUTES", "()"),
    ),
    "56 what init changes": mutant(
        f"{HERE}landlock.py::test_attributes_of_files_outside_stay[abi 6-os.chmod, it, 0o777]",
        Edit("launch/init/supervisor.py", "Supervisor._check_own", "pass"),
    ),
    "56 what init connects": mutant(
        f"{HERE}landlock.py::test_there_is_no_network_and_no_socket_of_the_machine[abi 6]",
        Edit("launch/init/supervisor.py", "Supervisor._check_listener", "pass"),
    ),
    "56 sockets": mutant(
        f"{HERE}landlock.py::test_there_is_no_network_and_no_socket_of_the_machine[abi 6]",
        Edit("walls/linux/undivided.py", "SOCKETS", "()"),
    ),
    "56 shared memory": mutant(
        f"{HERE}landlock.py::test_a_dangerous_call_is_refused_here_too[abi 6-shmget]",
        Edit("walls/linux/undivided.py", "SHARED", "()"),
    ),
    "56 memory": mutant(
        f"{HERE}landlock.py::test_a_session_over_its_memory_ends",
        Edit("host/launch/kernel_spec.py", "KernelSpec.memory", "return None"),
    ),
    "1 an unknown tier": mutant(
        "host/test_checks.py::test_there_are_four_kinds_of_isolation",
        Edit("host/checks.py", "find_tier", "return TIERS.get(name if isinstance(name, str) else '', TIERS['none'])"),
    ),
    "1 a variable that turns the sandbox off": mutant(
        "host/test_checks.py::test_the_environment_does_not_turn_the_sandbox_off",
        Edit("host/checks.py", "find_sandbox", "return TIERS.get(name, NATIVE)"),
    ),
    "1 a machine that cannot make the sandbox": mutant(
        "host/test_checks.py::test_who_starts_a_host_learns_what_this_machine_lacks",
        Edit("host/checks.py", "check_possible", "pass"),
    ),
    "56 hosts and sockets": mutant(
        "host/test_checks.py::test_landlock_has_no_network_and_no_local_sockets",
        Edit("walls/sandbox/tiers.py", "Landlock.fit", "return fit(policy, names_can_be_held=False)"),
    ),
    "56 names that cannot be held": mutant(
        "walls/sandbox/test_tiers.py::test_a_policy_is_fitted_to_what_a_tier_can_hold",
        Edit("walls/sandbox/tiers.py", "Landlock.fit", "return fit(policy)"),
    ),
    "49 tool ports that others can reach": mutant(
        "service/session/test_services.py::test_the_token_is_only_where_others_could_reach_the_port",
        Edit("walls/sandbox/tiers.py", "Landlock.own_network", "True"),
    ),
    "57 another user": mutant(
        "launch/custody/test_custodian.py::test_a_directory_that_others_can_enter_is_refused",
        Edit("launch/custody/custodian.py", "_is_private", "return True"),
    ),
    "57 messages to the custodian": mutant(
        "launch/custody/test_custodian.py::test_no_message_ends_it_or_leaves_descriptors_behind",
        Edit("launch/custody/custodian.py", "_parsed", "return json.loads(line)"),
    ),
    "57 answers of the custodian": mutant(
        "launch/custody/test_custodian.py::test_a_client_that_takes_no_answers_makes_it_hold_only_so_much",
        Edit("launch/custody/custodian.py", "_Custodian._crowded", "return False"),
    ),
    "57 memory": mutant(
        "host/survival/test_tape.py::test_a_long_tape_takes_little_memory", Edit("host/survival/tape.py", "Tape._drop", "pass")
    ),
    "57 bytes of another": mutant(
        "host/survival/test_tape.py::test_what_nobody_takes_does_not_become_anothers",
        Edit("host/survival/tape.py", "Aux.drain", "pass"),
    ),
    "57 twice": mutant(
        "host/survival/test_recording.py::test_what_was_begun_is_not_begun_again",
        Edit("host/survival/recording.py", "TapeRecording.begun", "pass"),
    ),
    "58 signatures": mutant(
        "fronts/jupyter/test_zeromq.py::test_a_kernel_serves_until_it_is_told_to_end",
        Edit("fronts/jupyter/zeromq.py", "signed", "return True"),
    ),
    "58 kernels of others": mutant(
        "fronts/gateway/test_jupyter.py::test_every_named_session_is_a_kernel",
        Edit("fronts/gateway/jupyter.py", "check_session_of", "pass"),
    ),
    "58 links among kernelspecs": mutant(
        "fronts/jupyter/test_kernelspecs.py::test_nothing_is_written_where_a_link_leads",
        Edit("common/whole_file.py", "WholeFile.__enter__", "return open(os.path.join(self._parent, self._final), 'wb')"),
        Edit("common/whole_file.py", "WholeFile.finish", "pass"),
    ),
    "58 what lies among kernelspecs": mutant(
        "fronts/jupyter/test_kernelspecs.py::test_what_others_have_put_among_kernelspecs_hinders_nobody",
        Edit("fronts/jupyter/kernelspecs.py", "read_spec", "return json.loads((directory / 'kernel.json').read_bytes())"),
    ),
    "58 clients that do not read": mutant(
        "fronts/gateway/test_jupyter.py::test_a_client_that_does_not_read_is_let_go",
        Edit("fronts/gateway/jupyter.py", "too_slow", "return False"),
    ),
    "58 requests without end": mutant(
        "fronts/gateway/test_jupyter.py::test_requests_do_not_wait_without_limit",
        Edit("fronts/jupyter/kernel.py", "check_room", "return True"),
    ),
    "58 values": mutant(
        "fronts/jupyter/test_messages.py::test_a_message_of_too_many_values_is_refused",
        Edit("model/untrusted.py", "has_too_many_values", "return False"),
    ),
    "68 values": mutant(
        "tools/serving/test_tool_app.py::test_a_body_of_many_small_values_is_refused_before_it_is_parsed",
        Edit("model/untrusted.py", "count_values", "return 0"),
    ),
    "58 turns": mutant(
        "fronts/gateway/test_jupyter.py::test_a_flood_of_messages_lets_others_have_their_turn",
        Edit("fronts/gateway/jupyter.py", "Turns.give_way", "pass"),
    ),
    "58 kernels that are killed": mutant(
        "fronts/jupyter/test_zeromq.py::test_a_session_ends_with_the_kernel_that_is_killed",
        Edit("service/daemon/client_connection.py", "Client._bind", "pass"),
    ),
    "59 the token": mutant(
        "fronts/mcp_server/test_start.py::test_over_http_only_those_with_the_token",
        Edit("fronts/mcp_server/start.py", "_has_token", "return True"),
    ),
    "59 other clients": mutant(
        "fronts/mcp_server/test_server.py::test_a_client_decides_nothing_for_another",
        Edit(
            "fronts/mcp_server/asking.py",
            "_take_answers",
            "from cellblock.operations.approvals import Pending\n"
            "answers = ctx.input_responses or {}\n"
            "for question in await clients.ask(Pending()):\n"
            "    if question.id in answers:\n"
            "        await _take_answer(clients, cell, question, answers[question.id])",
        ),
    ),
    "59 another client's servers": mutant(
        "fronts/mcp_server/test_server.py::test_over_http_what_a_client_registers_is_its_own",
        Edit(
            "service/daemon/tool_handlers.py",
            "_workspace",
            "return Path(server.sessions.find(session).record.workspace).parent",
        ),
    ),
    "59 another program's sessions": mutant(
        "fronts/mcp_server/test_server.py::test_sessions_of_other_programs_are_not_there",
        Edit("fronts/mcp_server/clients.py", "Clients.is_ours", "return True"),
    ),
    "59 whose question it is": mutant(
        "tools/mcp/test_elicit.py::test_a_question_that_could_be_anothers_is_shown_to_nobody",
        Edit("tools/mcp/elicit.py", "whose", "return next(iter(calls.values()), None)"),
    ),
    "59 a question after a cancelled call": mutant(
        "tools/mcp/test_elicit.py::test_a_question_after_a_cancelled_call_of_another_is_shown_to_nobody",
        Edit("tools/mcp/elicit.py", "whose", "return next(iter(calls.values())) if len(calls) == 1 else None"),
    ),
    "59 forms": mutant(
        "tools/approvals/test_elicitation.py::test_what_nobody_can_be_shown_is_refused",
        Edit("tools/approvals/elicitation.py", "_choice", "return value"),
    ),
    "59 answers": mutant(
        "tools/approvals/test_elicitation.py::test_what_is_not_an_answer_to_the_form_is_refused",
        Edit("tools/approvals/elicitation.py", "_fits", "return True"),
    ),
    "59 servers": mutant(
        "fronts/mcp_server/test_server.py::test_rules_decide_about_servers",
        Edit("fronts/mcp_server/registering.py", "decide_registration", "return None"),
    ),
    "59 commands of models": mutant(
        "fronts/mcp_server/test_program_runs.py::test_rules_decide",
        Edit("fronts/mcp_server/program_runs.py", "decide_command", "return None"),
    ),
    "60 messages to programs": mutant(
        "fronts/gateway/test_program_routes.py::test_who_may_follow_and_send",
        Edit("fronts/gateway/program_routes.py", "check_message", "pass"),
    ),
    "60 programs of those who leave": mutant(
        "fronts/gateway/test_program_routes.py::test_a_client_that_leaves_ends_its_program",
        Edit("fronts/gateway/answers.py", "while_there", "return await work"),
    ),
    "60 programs of lost connections": mutant(
        "service/daemon/test_program_handlers.py::test_a_client_whose_connection_is_lost_stops_its_exec_and_what_is_bound_to_it",
        Edit("service/daemon/daemon_state.py", "Server.end_program", "pass"),
    ),
    "60 names of others": mutant(
        f"{GUARD}a_foreign_name_is_refused[evil.example]", Edit("fronts/gateway/guard.py", "check_host", "pass")
    ),
    "60 pages of others": mutant(
        f"{GUARD}other_web_pages_are_refused", Edit("fronts/gateway/guard.py", "check_origin", "pass")
    ),
    "60 bodies that are announced": mutant(
        f"{GUARD}a_body_is_refused_before_it_has_come[Content-Length: 1000001]",
        Edit("fronts/gateway/guard.py", "check_length", "pass"),
    ),
    "60 bodies that are not": mutant(
        f"{GUARD}a_body_is_refused_before_it_has_come[Transfer-Encoding: chunked]",
        Edit("fronts/gateway/guard.py", "check_left", "pass"),
    ),
    "60 values": mutant(
        f"{GUARD}a_body_of_too_many_values_is_not_parsed[/sessions/x/executions]",
        Edit("fronts/gateway/guard.py", "check_values", "pass"),
    ),
    "60 other machines": mutant(
        f"{GUARD}without_tokens_nobody_elsewhere_is_served", Edit("fronts/gateway/guard.py", "check_local", "pass")
    ),
    "60 addresses without tokens": mutant(
        f"{GUARD}without_tokens_only_this_machine_is_served", Edit("fronts/gateway/serve.py", "check_address", "pass")
    ),
    "60 the token of a run": mutant(
        f"{GUARD}nothing_else_is_served_without_a_token[x]", Edit("fronts/gateway/guard.py", "same_token", "return True")
    ),
    "60 too much": mutant(f"{GUARD}a_caller_can_only_do_so_much", Edit("fronts/gateway/guard.py", "check_use", "pass")),
    "60 tokens for contexts of E2B": mutant(
        "fronts/e2b/test_app.py::test_tokens_that_may_only_look_run_nothing", Edit("fronts/e2b/app.py", "check_caller", "pass")
    ),
    "60 sessions that are no contexts": mutant(
        "fronts/e2b/test_contexts.py::test_other_sessions_of_the_user_are_nobodys_business",
        Edit("fronts/e2b/contexts.py", "language_in", "return 'python'"),
    ),
    "60 files that grow": mutant(
        "fronts/e2b/test_file_routes.py::test_a_body_can_be_compressed_and_cannot_grow_without_end",
        Edit("fronts/e2b/file_routes.py", "check_size", "pass"),
    ),
    "60 tokens": mutant(
        "service/store/test_tokens.py::test_almost_the_same_is_not_the_same",
        Edit("service/store/tokens.py", "_same", "return True"),
    ),
    "60 other sessions": mutant(
        "fronts/gateway/test_access.py::test_a_token_for_one_session_says_nothing_of_others",
        Edit("fronts/gateway/access.py", "check_session", "pass"),
    ),
    "60 sessions beside it": mutant(
        "fronts/gateway/test_access.py::test_a_token_for_one_session_makes_and_uses_no_others",
        Edit("fronts/gateway/routes.py", "check_others", "pass"),
    ),
    "60 scopes": mutant(
        "fronts/gateway/test_access.py::test_scopes_are_asked_for[read-POST-/kernels/mine/execute-body0]",
        Edit("fronts/gateway/access.py", "check_scope", "pass"),
    ),
    "60 directories of sessions": mutant(
        "fronts/gateway/test_session_routes.py::test_each_session_can_have_a_directory_of_its_own",
        Edit("fronts/gateway/session_routes.py", "workspace_in", "return directory.absolute() / name"),
    ),
    "60 names of directories": mutant(
        "fronts/gateway/test_session_routes.py::test_no_session_owns_a_name_that_means_something_to_its_siblings[.git]",
        Edit("fronts/gateway/session_routes.py", "workspace_in", "return directory.absolute() / name"),
    ),
    "60 heads without end": mutant(
        "fronts/gateway/test_protocol.py::test_a_head_of_a_request_has_a_limit",
        Edit("fronts/gateway/protocol.py", "too_long", "return False"),
    ),
    "60 connections": mutant(
        "fronts/gateway/test_protocol.py::test_more_connections_than_may_be_are_closed_at_once",
        Edit("fronts/gateway/protocol.py", "crowded", "return False"),
    ),
    "60 connections in one turn": mutant(
        "fronts/gateway/test_protocol.py::test_as_many_are_closed_as_have_come_in_one_turn",
        Edit("fronts/gateway/protocol.py", "crowded", "return False"),
    ),
    "60 private keys": mutant(
        "fronts/gateway/test_serve.py::test_a_private_key_is_not_where_sessions_work",
        Edit("fronts/gateway/serve.py", "check_key", "pass"),
    ),
    "60 frames in one turn": mutant(
        "fronts/gateway/test_protocol.py::test_a_turn_takes_few_frames",
        Edit("fronts/gateway/protocol.py", "_Joined.take", "receive(data)"),
    ),
    "60 handshakes": mutant(
        "fronts/gateway/test_protocol.py::test_handshakes_that_do_not_end_keep_nobody_out",
        Edit(
            "fronts/gateway/protocol.py",
            "BoundedHttp.connection_made",
            "self._handshake = self.loop.create_task(self._encrypt(transport, self.tls))",
        ),
    ),
    "60 handshakes that do not end": mutant(
        "fronts/gateway/test_protocol.py::test_a_handshake_has_to_end_soon",
        Edit("fronts/gateway/protocol.py", "BoundedHttp._expect_head", "pass"),
    ),
    "60 clients that dawdle": mutant(
        "fronts/gateway/test_protocol.py::test_who_dawdles_is_cut_off",
        Edit("fronts/gateway/protocol.py", "BoundedHttp._expect_head", "pass"),
    ),
    "60 bodies of requests that are answered": mutant(
        "fronts/gateway/test_protocol.py::test_the_rest_of_a_body_has_to_come",
        Edit("fronts/gateway/protocol.py", "BoundedHttp.on_response_complete", "super().on_response_complete()"),
    ),
    "60 trailers without end": mutant(
        "fronts/gateway/test_protocol.py::test_what_follows_a_body_is_dropped",
        Edit("fronts/gateway/protocol.py", "BoundedHttp.on_header", "super().on_header(name, value)"),
    ),
    "60 tokens in logs": mutant(
        "fronts/gateway/test_serve.py::test_any_server_serves_the_application_and_logs_no_token",
        Edit(
            "fronts/gateway/guard.py",
            "take_token",
            "return scope['query_string'].decode().partition('token=')[2].partition('&')[0]",
        ),
    ),
    "61 another user": mutant(
        "service/daemon/test_life.py::test_another_user_cannot_connect_or_pretend",
        Edit("service/daemon/place.py", "peer", "return os.geteuid()"),
    ),
    "61 a directory that others can write": mutant(
        "service/daemon/test_place.py::test_a_directory_that_others_can_write_is_refused",
        Edit("service/daemon/place.py", "Place.prepare", "self.directory.mkdir(parents=True, exist_ok=True)"),
    ),
    "61 the journal is bounded": mutant(
        "service/store/test_journal.py::test_the_oldest_that_have_ended_are_forgotten",
        Edit("service/store/journal.py", "Journal.trim", "pass"),
    ),
    "61 answers that nobody reads": mutant(
        "service/daemon/test_floods.py::test_a_client_that_reads_no_answers_does_not_fill_the_memory",
        Edit("service/daemon/client_connection.py", "_LARGE", "()"),
    ),
    "61 requests at once": mutant(
        "service/daemon/test_floods.py::test_only_so_many_requests_of_a_client_are_worked_on_at_once",
        Edit("service/daemon/client_connection.py", "Client._busy", "return False"),
    ),
    "61 ids of executions": mutant(
        "service/store/test_journal.py::test_an_id_that_is_none_is_not_found",
        Edit("service/store/journal.py", "is_id", "return True"),
    ),
    "64 the memory of copies": mutant(
        f"{UNDO}the_undo_of_a_hostile_cell_is_exact[writes to its memory]",
        Edit("launch/init/successor.py", "hide", "pass"),
    ),
    "64 limits of copies": mutant(
        f"{UNDO}the_undo_of_a_hostile_cell_is_exact[limits it]",
        Edit("walls/linux/seccomp.py", "of_itself", "return (((), ALLOW),)"),
    ),
    "64 priorities of copies": mutant(
        f"{UNDO}the_undo_of_a_hostile_cell_is_exact[slows it down]",
        Edit("walls/linux/seccomp.py", "of_itself", "return (((), ALLOW),)"),
    ),
    "64 signals to copies": mutant(
        f"{UNDO}the_undo_of_a_hostile_cell_is_exact[signals it]",
        Edit("launch/init/successor.py", "block_signals", "pass"),
    ),
    "64 memory that copies share": mutant(
        f"{UNDO}memory_that_is_shared_with_the_past_is_named", Edit("worker/forks/safety.py", "_shared_memory", "return []")
    ),
    "64 what does not survive a copy": mutant(
        f"{FORKS}test_a_thread_is_named", Edit("worker/forks/safety.py", "refusal", "return None")
    ),
    "64 threads that work": mutant(
        f"{FORKS}test_a_thread_is_named", Edit("worker/forks/pools.py", "reset_of", "return _nothing")
    ),
    "64 threads of libraries": mutant(
        f"{FORKS}test_a_thread_of_an_unknown_library_is_named_by_its_file",
        Edit("worker/forks/safety.py", "_survives", "return True"),
    ),
    "64 locks": mutant(
        "worker/forks/test_descriptors.py::test_a_file_that_is_locked_is_named_until_it_is_closed[lockf(f, fcntl.LOCK_EX)]",
        Edit("worker/forks/descriptors.py", "locked_file", "return None"),
    ),
    "64 what is done before a copy": mutant(
        f"{FORKS}test_a_copy_is_told_of_processes_and_does_not_wait_for_them",
        Edit("worker/forks/safety.py", "prepare", "pass"),
    ),
    "26 copies that the next host does not know": mutant(
        "launch/init/test_parked.py::test_only_copies_that_the_next_host_knows_stay",
        Edit("launch/init/parked.py", "Parked.keep", "return [number for number in numbers if number not in self._copies]"),
    ),
    "26 files without memory, after a kill": mutant(
        f"{KILLED}[undo-none-24]",
        Edit("host/survival/session_handover.py", "KeptSession._finish", "return ''"),
    ),
    "26 what tasks write while an undo is finished": mutant(
        f"{SURVIVAL}takeover.py::test_what_a_task_writes_while_the_next_host_finishes_an_undo_is_undone_with_it[none]",
        Edit(
            "host/checkpoints/undoing.py",
            "finish_undo",
            """
            state = states.past.fresh if checkpoint is None else checkpoint.moment.state
            intervals, left = await _intervals_of(states, states.past.pairs.after(state))
            await _go_back(states, Way(checkpoint, intervals, left, 0.0), states.past.line, partial=True)
            """,
        ),
    ),
    "26 a state that is not the kernel's": mutant(
        f"{KILLED}[undo all-none-24]",
        Edit("host/checkpoints/checkpoints.py", "Checkpoints.begin_going", "return Instant.before_changes()"),
    ),
    "26 a branch that is adopted in part": mutant(
        f"{KILLED}[adopt-none-24]", Edit("host/checkpoints/checkpoints.py", "Checkpoints.take", "pass")
    ),
    "26 a cell that was not sent": mutant(
        f"{SURVIVAL}keeping.py::test_a_cell_that_was_not_sent_leaves_no_trace[killed before]",
        Edit("host/survival/reconciling.py", "_unrecorded", "return [Placed(world.kernel)]"),
    ),
    "26 a cell that was counted twice": mutant(
        f"{SURVIVAL}takeover.py::test_undo_brings_variables_and_files_back_after_the_host_was_killed[none]",
        Edit("host/survival/session_handover.py", "KeptSession._take_kernel", "self._state.kernel = kernel.number"),
    ),
    "26 a log that is not whole": mutant(
        f"{SURVIVAL}state_log.py::test_what_cannot_all_be_written_is_not_read",
        Edit("host/survival/state_log.py", "StateLog._break", "pass"),
    ),
    "26 files that a person has changed since a save": mutant(
        "service/named/test_durable.py::test_it_goes_on_from_the_last_save_and_says_what_is_lost[exact]",
        Edit("host/snapshots/archive.py", "_found", "return None"),
    ),
    "26 an old save that a failed one replaces": mutant(
        "service/named/test_durable.py::test_a_full_disk_is_told_and_the_old_save_stays",
        Edit(
            "common/whole_file.py",
            "WholeFile.open",
            """
            self._file = open(os.path.join(self._parent, self._final), "w+b")
            return self._file
            """,
        ),
    ),
    "64 what is repaired in a copy": mutant(
        f"{FORKS}test_a_copy_is_told_of_processes_and_does_not_wait_for_them",
        Edit("worker/forks/safety.py", "repair", "return []"),
    ),
    "64 one repair that fails": mutant(
        f"{FORKS}test_what_cannot_be_repaired_is_told_and_the_rest_is_repaired",
        Edit("worker/forks/safety.py", "repair", "return [step() for step in _prepared.resets]"),
    ),
    "64 connections of the original": mutant(
        f"{COPIES}checkpoint.py::test_a_copy_has_no_connection_and_no_output_of_the_original[none]",
        Edit("worker/forks/descriptors.py", "separate", "return []"),
    ),
    "64 pairs of sockets": mutant(
        "worker/forks/test_sockets.py::test_a_pair_of_sockets_becomes_another_pair[SOCK_STREAM]",
        Edit("worker/forks/sockets.py", "_renew_pair", "return None"),
    ),
    "64 random numbers": mutant(
        f"{COPIES}session.py::test_branches_share_no_random_state_unless_they_are_to",
        Edit("launch/init/forking.py", "_settle_in", "os.environ.update(start.env)"),
    ),
    "64 NumPy's random numbers": mutant(
        f"{COPIES}session.py::test_branches_share_no_random_state_unless_they_are_to",
        Edit("launch/init/specialise.py", "reseed", "random.seed(seed)"),
    ),
    "64 what takes itself for a copy": mutant(
        "launch/init/test_parked.py::test_a_process_that_is_not_a_child_is_no_copy",
        Edit("launch/init/parked.py", "_is_child", "return True"),
    ),
    "64 a message without a sender": mutant(
        "launch/init/test_parked.py::test_a_copy_that_says_something_else_is_ended",
        Edit(
            "launch/init/parked.py",
            "_is_child",
            "return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None",
        ),
    ),
    "64 copies without end": mutant(
        f"{COPIES}checkpoints.py::test_too_many_automatic_checkpoints_are_dropped_and_named_ones_never",
        Edit("host/checkpoints/automatic.py", "AutomaticCheckpoints._drop_oldest", "pass"),
    ),
    "64 checkpoints of other hosts": mutant(
        f"{COPIES}checkpoints.py::test_checkpoints_of_other_hosts_and_wrong_ones_are_refused",
        Edit("host/checkpoints/checkpoints.py", "Checkpoints.check", "pass"),
    ),
    "64 kernels of other sandboxes": mutant(
        f"{COPIES}fitting.py::test_a_kernel_of_another_sandbox_is_refused[policy]",
        Edit("host/checkpoints/checkpoint.py", "check_same_sandbox", "pass"),
    ),
    "64 secrets in a branch": mutant(
        f"{COPIES}branches.py::test_what_a_session_may_not_read_is_not_copied_for_its_branches",
        Edit("host/files/walls.py", "Walls.names", "return set()"),
    ),
    "29 connections that the rules no longer allow": mutant(
        "walls/egress/test_live.py::test_a_connection_begun_by_the_old_rules_does_not_outlive_them",
        Edit("walls/egress/gate.py", "Gate.judge_again", "return []"),
    ),
    "29 questions that the rules have answered": mutant(
        "walls/egress/test_live.py::test_a_waiting_question_is_judged_anew",
        Edit("walls/egress/live.py", "LiveNetwork.join", "pass"),
    ),
    "29 hosts beyond the policy": mutant(
        "walls/egress/test_live.py::test_the_hosts_policy_is_the_ceiling",
        Edit("walls/egress/live.py", "LiveNetwork._is_within", "return True"),
    ),
    "30 hosts that a client no longer wants": mutant(
        "walls/egress/test_ask.py::test_a_question_ends_with_its_client_and_a_late_answer_dials_nothing",
        Edit("walls/egress/hang_up.py", "on_hang_up", "yield lambda: False"),
    ),
    "30 hosts that stopped code has asked for": mutant(
        "host/test_network.py::test_a_question_about_a_host_ends_with_the_code_that_asked[cancel]",
        Edit("walls/egress/network.py", "SandboxNetwork.withdraw_questions", "pass"),
    ),
    "64 hosts that a branch is denied": mutant(
        "service/store/test_networks.py::test_branches_share_a_network_also_after_a_restart",
        Edit("service/store/networks.py", "Networks.share", "pass"),
    ),
    "64 something else in the place of a branch": mutant(
        f"{COPIES}branches.py::test_code_cannot_have_something_else_removed",
        Edit("launch/leftovers.py", "_is", "return True"),
    ),
    "64 memory without files": mutant(
        f"{COPIES}workspace_snapshots.py::test_if_files_cannot_come_back_the_session_stays_as_it_is",
        Edit("host/checkpoints/workspace_snapshots.py", "CheckpointFiles.restore", "await then()\nreturn Changes()"),
    ),
    "64 files without memory": mutant(
        f"{COPIES}workspace_snapshots.py::test_if_no_kernel_can_be_made_files_become_again_what_they_were",
        Edit(
            "host/checkpoints/workspace_snapshots.py",
            "CheckpointFiles.restore",
            """
            store = self._make_store()
            changes = await _owned(lambda: self._snapshots(store).restore(snapshot, lambda: None), _forget)
            await then()
            return changes
            """,
        ),
    ),
    "63 compressed members": mutant(
        "host/test_saved_file.py::test_a_compressed_archive_is_refused",
        Edit("host/saved_file.py", "_check_stored", "pass"),
    ),
    "63 members that overlap": mutant(
        "host/test_saved_file.py::test_members_are_not_longer_than_the_file",
        Edit("host/saved_file.py", "_check_total", "pass"),
    ),
    "63 lengths that are claimed": mutant(
        "host/test_saved_file.py::test_an_archive_cannot_make_the_reader_read_more_than_there_is",
        Edit("host/saved_file.py", "_check_part", "pass"),
    ),
    "63 pickles": mutant(
        "host/test_saving.py::test_the_code_in_a_file_runs_in_the_sandbox_alone",
        Edit("host/saving.py", "_encoded", "import pickle\npickle.loads(piece)\nreturn base64.b64encode(piece).decode()"),
    ),
    "63 sessions that lie": mutant(
        "host/test_saving.py::test_a_session_that_lies_is_not_saved",
        Edit("host/saving.py", "_complete", "return state"),
    ),
    "62 links that are read": mutant(
        f"{SNAPSHOTS}test_beneath.py::test_nothing_outside_is_kept", Edit("common/open_flags.py", "SAFE", "os.O_CLOEXEC")
    ),
    "62 links that are written through": mutant(
        f"{SNAPSHOTS}test_beneath.py::test_nothing_outside_is_written",
        Edit("common/open_flags.py", "SAFE", "os.O_CLOEXEC"),
    ),
    "62 what others write while a restore is taken back": mutant(
        f"{SNAPSHOTS}test_restore.py::"
        "test_all_or_nothing_is_restored_of_what_nobody_else_writes_to_and_what_they_write_stays[3-append]",
        Edit("host/snapshots/trash.py", "Entry.take", "return True"),
    ),
    "62 what an undo removes": mutant(
        f"{SNAPSHOTS}test_undo.py::test_an_undo_equals_a_history_without_the_undone_cells_and_loses_nothing[6-False]",
        Edit("host/snapshots/trash.py", "Entry.take", "return True"),
    ),
    "62 what others save between two cells": mutant(
        f"{SNAPSHOTS}test_undo.py::test_what_others_save_between_two_cells_stays_if_nobody_looked_between_them",
        Edit(
            "host/snapshots/undo.py",
            "_is_by_others",
            "return _changed_at(before, after) > max(ended for _, ended in spans)",
        ),
    ),
    "62 what the trash does not take": mutant(
        f"{SNAPSHOTS}test_undo.py::test_a_trash_that_takes_nothing_loses_nothing",
        Edit("host/snapshots/restore.py", "Rescued.add", "pass"),
    ),
    "62 who has a file open that is in the trash": mutant(
        f"{SNAPSHOTS}test_trash.py::test_who_has_a_file_open_cannot_change_the_copy",
        Edit("host/snapshots/trash.py", "_LARGE", "-1"),
    ),
    "62 what is written while it is moved to the trash": mutant(
        f"{SNAPSHOTS}test_trash.py::test_a_file_that_is_written_to_meanwhile_is_copied_again[1]",
        Edit(
            "host/snapshots/trash.py",
            "_copy",
            """
            source, target = open_closed_file(name, folder), create_file(to, parent)
            content.copy(source, target, _MOST_COPIED)
            """,
        ),
    ),
    "62 paths out of the trash": mutant(
        f"{SNAPSHOTS}test_trash.py::test_no_path_leads_out_of_an_entry[../about.json]",
        Edit("host/snapshots/trash.py", "_is_inside", "return True"),
    ),
    "62 the newest entry of the trash": mutant(
        f"{SNAPSHOTS}test_trash.py::test_the_session_with_most_loses_its_oldest_but_never_its_newest",
        Edit("host/snapshots/trash.py", "_FEWEST", "0"),
    ),
    "62 restores at once": mutant(
        f"{COPIES}workspace_snapshots.py::test_sessions_that_restore_files_of_one_directory_at_once_take_turns[none]",
        Edit("host/checkpoints/workspace_snapshots.py", "_PATIENCE", "0.0"),
    ),
    "62 files that grow": mutant(
        f"{SNAPSHOTS}test_content.py::test_a_file_that_grows_while_it_is_read_ends_at_the_limit",
        Edit("host/snapshots/content.py", "_chunks", "while chunk := os.read(source, _CHUNK):\n    yield chunk"),
    ),
    "62 files of holes": mutant(
        f"{SNAPSHOTS}test_content.py::test_a_huge_sparse_file_is_left_out_and_a_smaller_one_stays_sparse",
        Edit("host/snapshots/content.py", "_ZEROS", 'b""'),
    ),
    "62 deep trees": mutant(
        f"{SNAPSHOTS}test_tree.py::test_a_deep_tree_ends_the_walk_and_not_the_host",
        Edit("host/snapshots/tree.py", "SnapshotLimits.max_depth", "10**6"),
    ),
    "62 many files": mutant(
        f"{SNAPSHOTS}test_walk.py::test_more_files_than_anybody_looks_at_are_an_error",
        Edit("host/snapshots/walk.py", "Walk.is_cut_off", "return False"),
    ),
    "62 set-user-ID bits": mutant(
        f"{SNAPSHOTS}test_tree.py::test_a_set_user_id_bit_does_not_come_back",
        Edit("host/snapshots/file.py", "PERMISSIONS", "0o7777"),
    ),
    "62 another directory": mutant(
        f"{SNAPSHOTS}test_snapshots.py::test_a_workspace_that_was_replaced_is_refused",
        Edit("host/snapshots/snapshots.py", "Snapshots._check_top", "pass"),
    ),
    "62 a full store": mutant(
        f"{SNAPSHOTS}test_store.py::test_a_full_store_keeps_nothing_of_a_snapshot",
        Edit("host/snapshots/store.py", "Store._check_room", "pass"),
    ),
    "62 what is left out": mutant(
        f"{SNAPSHOTS}test_plan.py::test_a_new_folder_goes_but_for_what_is_ignored_in_it",
        Edit("host/snapshots/plan.py", "_goes", "return True"),
    ),
    "62 a restore that is killed": mutant(
        f"{SNAPSHOTS}test_restore.py::test_a_restore_that_is_killed_is_finished_or_has_not_begun[7]",
        Edit("host/snapshots/restore.py", "recover", "return False"),
    ),
    "62 what was changed since": mutant(
        f"{SNAPSHOTS}test_restore.py::test_what_was_changed_after_a_kill_stays",
        Edit("host/snapshots/restore.py", "_identity", "return ()"),
    ),
    "63 changes that the system has not noted": mutant(
        f"{SNAPSHOTS}test_watch.py::test_what_is_missed_is_found_by_looking_at_everything[overflow]",
        Edit("host/snapshots/inotify.py", "OVERFLOW", "0"),
    ),
    "63 other names of a file": mutant(
        f"{SNAPSHOTS}test_watch.py::test_every_kind_of_change_is_found[written by a name that came and went]",
        Edit("host/snapshots/watch.py", "_FILE", "inotify.CREATE | inotify.ONESHOT"),
    ),
    "63 files that are mapped": mutant(
        f"{SNAPSHOTS}test_watch.py::test_every_kind_of_change_is_found[mapped]",
        Edit("host/snapshots/inotify.py", "has_writer", "return False"),
    ),
    "63 files in memory that are mapped": mutant(
        f"{SNAPSHOTS}test_watch.py::test_every_kind_of_change_is_found[mapped]",
        Edit("host/snapshots/inotify.py", "write_out", "return True"),
    ),
    "63 files with a writer": mutant(
        f"{SNAPSHOTS}test_watch.py::test_what_has_a_writer_is_looked_at_until_it_has_none",
        Edit("host/snapshots/watch.py", "Watch.doubt", "pass"),
    ),
    "63 what a look that failed had to look at": mutant(
        f"{SNAPSHOTS}test_watch.py::test_a_store_that_is_full_leaves_what_has_changed_to_the_next_look",
        Edit(
            "host/snapshots/watch.py",
            "Watch.begin",
            """
            for event in self._inotify.read():
                self._take_note(*event)
            dirt = {}
            for path, whole in self._due.items():
                _mark(dirt, path, whole=whole)
            self._due.clear()
            return dirt if self._complete else None
            """,
        ),
    ),
    "66 blanks": mutant(
        "tools/approvals/test_request.py::test_long_runs_of_blanks_are_counted[a line ends]",
        Edit("tools/approvals/request.py", "_MOST_BLANKS", "10**9"),
    ),
    "66 marks": mutant(
        "tools/approvals/test_request.py::test_marks_of_other_scripts_are_not_piled_up_either",
        Edit("tools/approvals/request.py", "_MOST_MARKS", "1000"),
    ),
    "66 parts": mutant(
        "fronts/mcp_server/test_asking.py::test_what_is_long_is_shown_in_parts_that_must_all_be_read[the first part-auto]",
        Edit("fronts/mcp_server/asking.py", "answer_in", "return answers.get(name)"),
    ),
    "66 what is too long": mutant(
        "fronts/mcp_server/test_asking.py::test_what_is_too_long_to_be_read_is_refused_with_the_reason",
        Edit("fronts/mcp_server/asking.py", "_PARTS", "1000"),
    ),
    "65 what is written": mutant(
        f"{WALLS}what_a_session_may_not_write_nobody_writes_for_it[.vscode/tasks.json]",
        Edit("host/files/walls.py", "Bounds.why_unwritable", 'return ""'),
        Edit("host/files/walls.py", "Bounds.check_removable", "pass"),
    ),
    "67 the kernel stands apart": mutant(
        f"{VERIFIER}a_verifier_is_out_of_reach_of_a_running_cell",
        APART,
    ),
    "67 programs stand apart from each other": mutant(
        f"{VERIFIER}a_verifier_is_out_of_reach_of_programs_that_were_started_before",
        Edit(
            "launch/init/watcher.py",
            "_confine",
            "if around.confinement is not None:\n    confine(around.confinement, supervisor)",
        ),
    ),
    "67 a watcher hides": mutant(
        f"{VERIFIER}what_watches_programs_is_out_of_reach", Edit("launch/init/watcher.py", "_hide", "pass")
    ),
    "67 the whole tree": mutant(
        "host/programs/test_background_programs.py::test_a_time_limit_ends_the_whole_tree_and_nothing_else[native-one that ignores SIGTERM]",
        Edit("launch/init/watcher.py", "_Watcher._kill_tree", "processes.kill([self._leader])"),
    ),
    "67 what is held": mutant(
        "host/test_eager.py::test_connections_wait_for_the_end_of_the_text",
        Edit("host/holding.py", "Holding.hold", "self._held = None"),
    ),
    "67 egress that is closed": mutant(
        "fronts/rollouts/test_pool.py::test_egress_is_closed_for_good",
        Edit("walls/egress/live.py", "LiveNetwork.close_to", "pass"),
    ),
    "67 branches of what is closed": mutant(
        "fronts/rollouts/test_pool.py::test_egress_is_closed_for_good",
        Edit("host/kernels/family.py", "Family.seal", "self.sealed = False"),
    ),
    "66 decisions that were taken": mutant(
        "service/named/test_approvals.py::test_what_was_allowed_says_so_if_it_is_not_kept_whole",
        Edit("service/named/approvals.py", "_beginning", "return text[:1000]"),
    ),
    "65 what no policy makes writable": mutant(
        f"{WALLS}what_no_policy_makes_writable_nobody_writes", Edit("host/files/walls.py", "_around", "return 1")
    ),
    "65 settings of srt": mutant(
        f"{WALLS}settings_of_srt_count_as_srt_means_them",
        Edit("walls/sandbox/srt.py", "SrtPolicy.rules", "return self.filesystem"),
    ),
    "65 patterns of srt": mutant(
        f"{WALLS}settings_of_srt_count_as_srt_means_them", Edit("walls/sandbox/srt.py", "SrtPolicy.denied_like", "return None")
    ),
    "65 what is unpacked": mutant(
        f"{WALLS}what_a_session_may_not_write_is_left_out_of_archives_and_folders",
        Edit("host/files/walls.py", "Bounds.why_unwritable", 'return ""'),
    ),
    "65 what is read": mutant(
        f"{WALLS}what_a_session_may_not_read_nobody_reads_for_it[.env]",
        Edit("host/files/walls.py", "Bounds.hides", "return False"),
    ),
    "65 where links lead": mutant(
        f"{WALLS}where_a_protected_link_leads_nobody_writes_either",
        Edit(
            "host/files/walls.py",
            "_beneath",
            "return {tuple(p[len(root) + 1:].split('/')) for p in paths if p.startswith(root + '/')}",
        ),
    ),
    "65 branches": mutant(
        f"{WALLS}what_a_branch_was_given_does_not_come_to_the_workspace_under_a_protected_name",
        Edit("host/files/walls.py", "Walls.names", "return set()"),
    ),
    "65 links in the place of tools": mutant(
        "tools/calling/test_beneath.py::test_nothing_is_read_through_a_link",
        Edit("tools/calling/beneath.py", "_FOLDER", "os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC"),
    ),
    "65 links in the place of actions": mutant(
        "tools/calling/test_beneath.py::test_nothing_is_written_through_a_link",
        Edit("tools/calling/beneath.py", "_FOLDER", "os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC"),
    ),
    "53 pickle": mutant(
        "wire/values/test_forms.py::test_a_pickled_value_is_not_read",
        Edit("wire/values/forms.py", "_reader", "return pickle.loads"),
    ),
    "53 compression": mutant(
        "wire/values/test_tables.py::test_a_compressed_table_is_refused",
        Edit("wire/values/tables.py", "is_compressed", "return False"),
        Edit("wire/values/tables.py", "_check_size", "pass"),
    ),
    "53 claims": mutant(
        "wire/values/test_tables.py::test_a_table_that_claims_more_than_it_has_is_refused",
        Edit("wire/values/tables.py", "_check_size", "pass"),
    ),
    "71 hooks": mutant(
        f"{CLONES}git.py::test_hooks_of_a_repository_do_not_run",
        Edit("host/clones/git.py", "_ALWAYS", '("core.fsmonitor=false",)'),
    ),
    "71 variables of git": mutant(
        f"{CLONES}git.py::test_variables_do_not_lead_git_to_another_repository",
        Edit("host/clones/git.py", "_environment", "return dict(os.environ)"),
    ),
    "71 settings of the user": mutant(
        f"{CLONES}git.py::test_settings_of_the_user_do_not_apply_to_objects_of_a_session",
        Edit(
            "host/clones/git.py",
            "_environment",
            "return {name: value for name, value in config.environment().items() if not name.startswith('GIT_')}",
        ),
    ),
    "71 settings of a session": mutant(
        f"{CLONES}clone.py::test_settings_hooks_and_filters_of_a_session_run_in_its_sandbox_only",
        Edit(
            "host/clones/clone.py",
            "Clone._run",
            """
            import subprocess
            subprocess.run(["git", "-c", "safe.directory=*", "-C", self.path, "status"], check=False)
            step = Step(
                _PROGRAM,
                request,
                readable={},
                limit=MOST_PACKED,
                sees_session=True,
                mounts=self.mounts,
                what="git in the clone",
                limit_of="a clone",
            )
            async with self._sandboxes.run(step, self._wanted) as done:
                yield done
            """,
        ),
    ),
    "71 the repository": mutant(
        f"{CLONES}clone.py::test_the_repository_of_the_project_is_read_only",
        Edit(
            "host/clones/clone.py",
            "Clone.mounts",
            'return Bind(self.path, self.project.path, "rw"), Bind(self.project.repository, f"/tmp/{_ORIGIN}", "rw")',
        ),
    ),
    "71 references": mutant(
        f"{CLONES}clone.py::test_references_of_a_session_are_not_taken_over",
        Edit(
            "host/clones/project.py",
            "Project.fetch",
            'self._git("fetch", "--quiet", source, f"+{ref}:{to}", f"+{ref}:refs/heads/main2")',
        ),
    ),
    "71 names of references": mutant(
        f"{CLONES}clone.py::test_each_name_has_a_reference_of_its_own[names2]",
        Edit("host/clones/clone.py", "_as_reference", "return re.sub(r'[.]+', '.', name)"),
    ),
    "71 names in other directories": mutant(
        f"{CLONES}clone.py::test_names_in_other_directories_stay_protected",
        Edit(
            "host/clones/clone.py",
            "_policy_for",
            "return replace(policy, filesystem=replace(policy.filesystem, deny_write=(), deny_read=()))",
        ),
    ),
    "71 commits": mutant(
        f"{CLONES}incoming.py::test_a_commit_is_a_hash[HEAD]", Edit("model/clones.py", "COMMIT", 're.compile(".*")')
    ),
    "71 names in trees": mutant(
        f"{CLONES}incoming.py::test_trees_with_names_that_lead_to_a_repository_are_refused[.git]",
        Edit(
            "host/clones/incoming.py",
            "_index",
            'run_git(repository, "index-pack", "--fix-thin", "--stdin", data=pack, untrusted=True)',
        ),
    ),
    "71 packs": mutant(
        f"{CLONES}incoming.py::test_a_pack_has_a_limit",
        Edit(
            "host/clones/incoming.py",
            "_index",
            'run_git(repository, "index-pack", "--strict", "--fix-thin", "--stdin", data=pack, untrusted=True)',
        ),
    ),
    "71 links in the place of packs": mutant(
        f"{CLONES}incoming.py::test_a_pack_is_a_plain_file[link]",
        Edit("host/clones/incoming.py", "_PLAIN", "os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC"),
    ),
    "71 protected names": mutant(
        f"{CLONES}incoming.py::test_names_that_programs_obey_are_refused[.envrc]",
        Edit("host/clones/incoming.py", "_NAMES", "frozenset()"),
    ),
    "71 hooks in the working copy": mutant(
        f"{CLONES}project.py::test_a_directory_of_hooks_in_the_working_copy_is_known",
        Edit("host/clones/project.py", "Project.hooks", 'return ""'),
    ),
    "71 links that lead out": mutant(
        f"{CLONES}incoming.py::test_links_that_lead_out_and_submodules_are_refused[link]",
        Edit("host/clones/incoming.py", "_leads_out", "return False"),
    ),
    "71 submodules": mutant(
        f"{CLONES}incoming.py::test_links_that_lead_out_and_submodules_are_refused[module]",
        Edit("host/clones/incoming.py", "Incoming._is_dangerous", "return change.mode == _LINK"),
    ),
    "72 tickets": mutant(
        f"{PAGES}test_a_ticket_becomes_a_cookie_of_this_host_once",
        Edit(
            "fronts/gateway/ports.py",
            "Page.enter",
            f"{KNOWN.replace('pop', 'get')}until <= time.monotonic() or not is_valid():{ENTERED}",
        ),
    ),
    "72 old tickets": mutant(
        f"{PAGES}test_a_ticket_is_valid_for_two_minutes",
        Edit("fronts/gateway/ports.py", "Page.enter", f"{KNOWN}not is_valid():{ENTERED}"),
    ),
    "72 tickets of revoked tokens": mutant(
        f"{PAGES}test_a_ticket_is_valid_for_two_minutes",
        Edit("fronts/gateway/ports.py", "Page.enter", f"{KNOWN}until <= time.monotonic():{ENTERED}"),
    ),
    "72 cookies": mutant(
        f"{PAGES}test_a_ticket_becomes_a_cookie_of_this_host_once",
        Edit("fronts/gateway/ports.py", "Page.admits", "return True"),
    ),
    "72 cookies of other pages": mutant(
        f"{PAGES}test_the_cookie_of_another_page_does_not_count",
        Edit("fronts/gateway/ports.py", "Page.admits", "return any(cookies)"),
    ),
    "72 cookies of revoked tokens": mutant(
        f"{PAGES}test_a_cookie_counts_as_long_as_its_token",
        Edit("fronts/gateway/ports.py", "Page.admits", "return any(one in self._cookies for one in cookies)"),
    ),
    "72 cookies without TLS": mutant(
        "fronts/gateway/test_ports_by_tls.py::test_a_page_is_entered_by_tls_with_a_secure_cookie_of_its_host",
        Edit("fronts/gateway/ports.py", "Names.cookie", "return COOKIE"),
    ),
    "72 rebound names": mutant(
        f"{PAGES}test_a_foreign_name_reaches_nothing",
        Edit("fronts/gateway/ports.py", "Names.pattern", f"{HOSTS} rf'(frame.)?{{_LABEL}}[^:]*(?::[0-9]+)?', re.IGNORECASE)"),
    ),
    "72 names below pages": mutant(
        f"{PAGES}test_other_names_below_a_page_are_no_host[x.]",
        Edit(
            "fronts/gateway/ports.py", "Names.pattern", f"{HOSTS} rf'(x^)?.*{{_LABEL}}.localhost(?::[0-9]+)?', re.IGNORECASE)"
        ),
    ),
    "72 origins": mutant(
        f"{PAGES}test_a_request_of_another_page_is_refused", Edit("fronts/gateway/ports.py", "_Visit._check_origin", "pass")
    ),
    "72 origins by TLS": mutant(
        "fronts/gateway/test_ports_by_tls.py::test_requests_of_other_origins_are_refused[http]",
        Edit("fronts/gateway/ports.py", "_Visit._check_origin", "pass"),
    ),
    "72 origins of WebSockets": mutant(
        f"{PAGES}test_a_web_socket_of_another_page_is_refused[None]",
        Edit("fronts/gateway/ports.py", "_Visit._check_origin", "pass"),
    ),
    "72 parts of pages": mutant(
        f"{PAGES}test_another_page_of_the_domain_loads_no_part_of_a_page[same-site]",
        Edit("fronts/gateway/ports.py", "_Visit._is_part_of_another_page", "return False"),
    ),
    "72 tickets that lead elsewhere": mutant(
        f"{PAGES}test_a_ticket_leads_to_no_other_host",
        Edit(
            "fronts/gateway/ports.py",
            "_Visit._ticket",
            """
            fields = dict(parse_qsl(self._scope["query_string"].decode("latin-1")))
            ticket = fields.pop(TICKET, None)
            return ticket and (ticket, f"{forwarding.path_of(self._scope).decode()}?{urlencode(fields)}")
            """,
        ),
    ),
    "72 frames": mutant(
        f"{PAGES}test_a_page_stays_in_its_frame",
        Edit(
            "fronts/gateway/ports.py",
            "_Visit._answered",
            'return forwarding.passed_headers(headers, self._page.port, b"")',
        ),
    ),
    "72 requests at a time": mutant(
        f"{PAGES}test_a_page_has_a_limit_of_requests_at_a_time", Edit("fronts/gateway/ports.py", "_AT_ONCE", "10_000")
    ),
    "72 tokens and cookies for servers": mutant(
        f"{PAGES}test_the_server_sees_itself_and_nothing_of_cellblock",
        Edit(
            "fronts/gateway/forwarding.py",
            "own_headers",
            "return [(b'host', f'localhost:{port}'.encode()), *(one for one in headers if one[0] != b'host')]",
        ),
    ),
    "72 headers about other hosts": mutant(
        f"{PAGES}test_the_browser_gets_no_headers_about_other_hosts",
        Edit("fronts/gateway/forwarding.py", "_NOT_ANSWERED", "frozenset()"),
    ),
    "72 cookies for other hosts": mutant(
        f"{PAGES}test_the_browser_gets_no_headers_about_other_hosts",
        Edit("fronts/gateway/forwarding.py", "_host_only", "return value"),
    ),
    "72 heads of answers": mutant(
        f"{PAGES}test_the_head_of_an_answer_has_a_limit",
        Edit("fronts/gateway/forwarding.py", "_MAX_HEAD", "1 << 30"),
    ),
    "72 rebound names at published ports": mutant(
        f"{PUBLISHED}test_web_pages_and_rebound_names_are_refused[0]",
        Edit("fronts/e2b/published.py", "_own_origin", "return f'http://localhost:{port}'"),
    ),
    "72 web pages at published ports": mutant(
        f"{PUBLISHED}test_web_pages_and_rebound_names_are_refused[6]",
        Edit("fronts/e2b/published.py", "_opens_page", "return False"),
    ),
    "72 cookies of localhost": mutant(
        f"{PUBLISHED}test_a_browser_is_sent_to_the_pages_own_origin",
        Edit("fronts/e2b/published.py", "_opens_page", "return False"),
    ),
    "73 kinds of device nodes": mutant(
        f"{GPUS}test_a_description_that_cannot_be_used_says_why[1]",
        Edit(
            "walls/sandbox/gpus.py",
            "_nodes",
            """
            for node in _objects(edits, "deviceNodes"):
                path = _path(node, "path", name)
                if _NODE.fullmatch(path):
                    yield Bind(node.get("hostPath") or path, path, "dev")
            """,
        ),
    ),
    "73 other devices": mutant(
        f"{GPUS}test_a_plan_has_the_nodes_of_one_gpu_and_what_a_session_does_not_see",
        Edit("walls/sandbox/gpus.py", "_NODE", 're.compile("/dev/(nvidia.*|dri.*)")'),
    ),
    "73 nodes that configure parts": mutant(
        f"{GPUS}test_parts_of_a_gpu_have_their_nodes_and_locks", Edit("walls/sandbox/gpus.py", "_MANAGEMENT", "frozenset()")
    ),
    "73 paths": mutant(
        f"{GPUS}test_a_description_that_cannot_be_used_says_why[6]", Edit("walls/sandbox/gpus.py", "_path", "return data[key]")
    ),
    "73 places of mounts": mutant(
        f"{GPUS}test_a_description_that_cannot_be_used_says_why[4]", Edit("walls/sandbox/gpus.py", "_OURS", "()")
    ),
    "73 memory of PCI devices": mutant(
        f"{GPUS}test_a_plan_has_the_nodes_of_one_gpu_and_what_a_session_does_not_see",
        Edit("walls/sandbox/gpus.py", "_ATTRIBUTES", '("numa_node", "resource0")'),
    ),
    "73 hooks": mutant(
        f"{GPUS}test_hooks_of_a_description_do_not_run",
        Edit(
            "walls/sandbox/gpus.py",
            "_object",
            """
            import subprocess
            for hook in data.get(key, {}).get("hooks", ()):
                subprocess.run(hook["args"], check=False)
            return data[key]
            """,
        ),
    ),
    "73 YAML": mutant(
        f"{GPUS}test_names_in_yaml_are_text_and_nothing_in_it_runs",
        Edit("walls/sandbox/gpus.py", "_parse_yaml", "import yaml\nreturn yaml.load(text, yaml.UnsafeLoader)"),
    ),
    "73 GPUs of other sessions": mutant(
        f"{GPUS}test_a_gpu_belongs_to_one_session", Edit("host/devices.py", "SessionDevices._lock", "pass")
    ),
    "73 other names of a GPU": mutant(
        f"{GPUS}test_parts_of_a_gpu_belong_to_one_session_each",
        Edit("walls/sandbox/gpus.py", "_spans", "return ((len(repr([*nodes])), 1),)"),
    ),
}

# Where a test runs in both sandboxes that are ours, the native one is what the mutation is about.
NATIVE = ("-k", "not (landlock- or landlock])")
OPTIONS = (*NATIVE, "-v", "-n", "0", "-x", "-p", "no:cacheprovider", f"--rootdir={TESTS.parent}", "--tb=short")
# The server has imported plugins before pytest could rewrite their asserts.
UNREWRITTEN = ("-W", "ignore::pytest.PytestAssertRewriteWarning")

Run = Callable[..., Awaitable[tuple[int | None, str]]]


@pytest.fixture(scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Run]:
    """Return a function that runs tests with a copy of the package, and returns pytest's exit status and what it said.

    The status is None if it took too long and was cut off.
    """
    server = await asyncio.create_subprocess_exec(
        sys.executable, str(Path(__file__).with_name("pytest_server.py")),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=TESTS.parent,
    )  # fmt: skip
    assert server.stdin
    assert server.stdout
    requests, answers = server.stdin, server.stdout

    async def run(package: Path, *tests: str, seconds: int) -> tuple[int | None, str]:
        output = tmp_path_factory.mktemp("output") / "said"
        request = {
            "arguments": [*OPTIONS, *UNREWRITTEN, *(f"{TESTS}/{test}" for test in tests)],
            "environment": environment(package),
            "output": str(output),
            "seconds": seconds,
        }
        requests.write(json.dumps(request).encode() + b"\n")
        status = json.loads(await answers.readline())
        return status, output.read_text(errors="replace")

    yield run
    requests.close()
    await server.wait()


def _chosen(config: pytest.Config) -> list[str]:
    """Return which mutants run: all, a sample, or those that somebody names."""
    if is_whole(config) or not selection["slow"]:
        return [*MUTANTS]
    return sorted(random.Random(os.environ[SEED]).sample(sorted(MUTANTS), SAMPLE))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make tests of the mutants that run."""
    runs = _chosen(metafunc.config)
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", runs)
    if "tests" in metafunc.fixturenames:
        tests = sorted({MUTANTS[name].test for name in runs})
        parts = [tests[start : start + PART] for start in range(0, len(tests), PART)]
        metafunc.parametrize("tests", parts, ids=map(str, range(len(parts))))


async def test_the_tests_pass_on_a_copy_that_is_not_changed(
    tmp_path: Path, run: Run, tests: list[str], record_property: Callable[[str, object], None]
) -> None:
    record_property(SUMMARY, f"{len(tests)} tests of mutants, of which there are {len(MUTANTS)} ({SEED}={os.environ[SEED]})")
    status, said = await run(copied(tmp_path / "package"), *tests, seconds=200)
    assert status == 0, said


async def test_a_test_fails_without_its_defence(tmp_path: Path, run: Run, name: str) -> None:
    row = MUTANTS[name]
    package = copied(tmp_path / "package", *row.edits)
    status, said = await run(package, row.test, seconds=SECONDS if name in ENDLESS else 100)
    # 1: tests failed. All else is a mistake here: no such test (4), none left (5), a module that cannot be loaded (2).
    begun = f"::{row.test.partition('::')[2]}" in said
    assert status == 1 or (status is None and name in ENDLESS and begun), said
    assert "SyntaxError" not in said, said
