"""Patterns, and the decisions that they make."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.errors import InvalidInputError
from cellblock.walls.egress.addresses import objection
from cellblock.walls.egress.names import Target, canonical_host
from cellblock.walls.egress.rules import Denial, Refusal, Rule, Rules


def at(host: str, port: int = 443) -> Target:
    return Target(canonical_host(host), port)


def test_patterns() -> None:
    cases: list[tuple[str, str]] = [
        ("Index.Example.", "index.example"),
        ("*.Example.com", "*.example.com"),
        ("*", "*"),
        ("*:8443", "*:8443"),
        ("example.com:8443", "example.com:8443"),
        (" 10.0.0.5:5432 ", "10.0.0.5:5432"),
        ("[2001:DB8::1]:443", "[2001:db8::1]:443"),
        ("2001:db8::1", "[2001:db8::1]"),
        ("git.corp.example  private", "git.corp.example private"),
        ("0x7f.1:80", "127.0.0.1:80"),
        ("bücher.example", "xn--bcher-kva.example"),
    ]
    for pattern, canonical in cases:
        assert str(Rule.parse(pattern)) == canonical
        assert Rule.parse(canonical) == Rule.parse(pattern)


def test_bad_patterns_are_named() -> None:
    cases: list[tuple[str, str]] = [
        ("", "not a valid host name"),
        ("https://index.example", "more than a host and a port"),
        ("index.example/simple", "more than a host and a port"),
        ("user@index.example", "more than a host and a port"),
        ("index.example:", "the port is not a number"),
        ("index.example:http", "the port is not a number"),
        ("index.example:0", "the port is not a number"),
        ("exa*mple.com", "not a valid host name"),
        ("*example.com", "not a valid host name"),
        ("*.*.example.com", "not a valid host name"),
        ("*.", "not a valid host name"),
        ("*.10.0.0.1", "an address has no subdomains"),
        ("10.0.0.0.1", "not a valid IPv4 address"),
        ("10.0.0.256", "not a valid IPv4 address"),
        ("10.0.0.0/8", "more than a host and a port"),
        ("fe80::1%eth0", "zone"),
        ("index.example public", "only the word 'private'"),
        ("index.example private private", "only the word 'private'"),
        ("*.corp private", "without a '*'"),
        ("* private", "without a '*'"),
        ("index.example\0", "not a valid host name"),
    ]
    for pattern, why in cases:
        with pytest.raises(InvalidInputError, match=why) as caught:
            Rules.parse(["good.example", pattern])
        assert repr(pattern) in str(caught.value)
        with pytest.raises(InvalidInputError, match=why):
            Rules.parse([], [pattern])


def test_bad_lists() -> None:
    with pytest.raises(InvalidInputError, match=r"write \['index\.example'\]"):
        Rules.parse("index.example")
    with pytest.raises(InvalidInputError, match="not 5"):
        Rules.parse([5])  # type: ignore[list-item]
    with pytest.raises(InvalidInputError, match=r"'a\.example private' denies"):
        Rules.parse([], ["a.example private"])


def test_nothing_is_allowed_by_default() -> None:
    assert Rules().judge(at("index.example")) == Refusal("no rule names this host", "index.example")
    assert Rules.parse([]) == Rules()


def test_ports() -> None:
    rules = Rules.parse(["a.example", "b.example:8443", "*.c.example:22"])
    assert rules.judge(at("a.example", 80)) is None
    assert rules.judge(at("a.example", 443)) is None
    assert rules.judge(at("a.example", 8443)) == Refusal("no rule for this host names port 8443", "a.example:8443")
    assert rules.judge(at("b.example", 8443)) is None
    assert rules.judge(at("b.example", 443)) == Refusal("no rule for this host names port 443", "b.example")
    assert rules.judge(at("x.c.example", 22)) is None
    assert rules.judge(at("c.example", 22)) == Refusal("no rule names this host", "c.example:22")


def test_what_is_denied_stays_denied() -> None:
    rules = Rules.parse(["*", "evil.example", "10.0.0.5"], ["evil.example", "*.bad.example", "c.example:80", "93.184.216.34"])
    assert rules.judge(at("evil.example", 80)) == Refusal("the rule 'evil.example' denies it")
    assert rules.judge(at("x.bad.example")) == Refusal("the rule '*.bad.example' denies it")
    assert rules.judge(at("bad.example")) is None
    assert rules.judge(at("c.example", 80)) is not None
    assert rules.judge(at("c.example", 443)) is None
    # Also where a name leads to it.
    refusal = rules.judge_address(at("d.example"), at("93.184.216.34"), None)
    assert refusal == Refusal("the rule '93.184.216.34' denies it")


def test_addresses() -> None:
    cases: list[tuple[list[str], str, str, int, str | None]] = [
        (["db.corp"], "db.corp", "93.184.216.34", 443, None),
        (["db.corp"], "db.corp", "10.0.0.5", 443, "db.corp private"),
        (["db.corp:5432"], "db.corp", "10.0.0.5", 5432, "db.corp:5432 private"),
        (["db.corp private"], "db.corp", "10.0.0.5", 443, None),
        (["db.corp private"], "db.corp", "fd00::5", 443, None),
        (["db.corp:5432 private", "db.corp"], "db.corp", "10.0.0.5", 443, "db.corp private"),
        (["*.corp"], "db.corp", "10.0.0.5", 443, "db.corp private"),
        # Not even private: loopback, metadata, what tunnels to elsewhere.
        (["db.corp private"], "db.corp", "127.0.0.1", 443, "127.0.0.1"),
        (["db.corp private"], "db.corp", "169.254.169.254", 80, "169.254.169.254"),
        (["db.corp private"], "db.corp", "fd00:ec2::254", 80, "[fd00:ec2::254]"),
        (["db.corp private"], "db.corp", "64:ff9b::a00:1", 443, "[64:ff9b::a00:1]"),
        # An address that a rule names, at the port that it names.
        (["db.corp", "10.0.0.5"], "db.corp", "10.0.0.5", 443, None),
        (["db.corp:5432", "10.0.0.5"], "db.corp", "10.0.0.5", 5432, "db.corp:5432 private"),
        (["localhost:8000", "127.0.0.1:8000"], "localhost", "127.0.0.1", 8000, None),
        (["*"], "10.0.0.5", "10.0.0.5", 443, "10.0.0.5"),
        (["10.0.0.5"], "10.0.0.5", "10.0.0.5", 443, None),
    ]
    for patterns, host, address, port, needed in cases:
        rules, target = Rules.parse(patterns), at(host, port)
        assert rules.judge(target) is None
        refusal = rules.judge_address(target, at(address, port), objection(ip_address(address)))
        assert (refusal and refusal.rule_needed) == needed
        if refusal is not None:
            # The rule that is said to be missing is the one.
            assert refusal.rule_needed is not None
            more = Rules.parse([*patterns, refusal.rule_needed])
            assert more.judge_address(target, at(address, port), objection(ip_address(address))) is None


def test_denials_as_lines() -> None:
    denial = Denial("a.example", 443, "no rule names this host", "a.example", "CONNECT")
    assert denial.message == "egress to a.example:443 denied: no rule names this host; " + (
        "to allow it: cellblock network NAME --allow a.example, or change_network(allow=['a.example'])"
    )
    assert Denial("a\\x00b", 0, "it is wrong", None, "GET").message == "egress to a\\x00b denied: it is wrong"


HOSTS = st.text("a1.-*:[] ß\0\ud800", max_size=12) | st.sampled_from(["example.com", "[::1]", "10.0.0.1", "*.example.com"])
PATTERNS = st.builds(lambda host, end: host + end, HOSTS, st.sampled_from(["", ":443", ":0", ":99999999999", " private"]))


@given(st.lists(PATTERNS, max_size=4), st.lists(PATTERNS, max_size=2))
def test_lists_of_any_form_are_refused_or_decide(allowed: list[str], denied: list[str]) -> None:
    try:
        rules = Rules.parse(allowed, denied)
    except InvalidInputError:
        return
    for rule in rules.allowed:
        assert Rule.parse(str(rule)) == rule
    for host in ("a.example.com", "10.0.0.1", "::1"):
        refusal = rules.judge(at(host))
        assert refusal is not None or rules.allowed, "nothing is reached without a rule"


def test_a_list_of_many_rules_and_a_long_one_are_read_in_linear_time() -> None:
    assert len(Rules.parse([f"h{number}.example" for number in range(20_000)]).allowed) == 20_000
    with pytest.raises(InvalidInputError):
        Rules.parse(["a." * 100_000 + "example"])
