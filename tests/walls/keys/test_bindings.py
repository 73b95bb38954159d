"""Secrets of known services, hosts, and placeholders."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from cellblock import InvalidInputError, Secret
from cellblock.walls.keys.bindings import bind, patterns
from cellblock.walls.keys.fill import has_placeholder

SEED = b"s" * 32


def test_a_known_name_needs_nothing_else() -> None:
    found = bind("GITHUB_TOKEN", Secret(source="env:X"))
    assert found.hosts == ["api.github.com:443", "uploads.github.com:443", "github.com:443"]
    assert (found.uses[1].basic, found.uses[1].attach) == ("x-access-token:{}", True)
    assert patterns([found]) == ("api.github.com", "uploads.github.com", "github.com")


def test_a_placeholder_is_random_and_stays() -> None:
    for name in ("GITHUB_TOKEN", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "HF_TOKEN", "GEMINI_API_KEY", "ACME"):
        found = bind(name, Secret(hosts=("a.test",)))
        one = found.placeholder(SEED)
        assert one == found.placeholder(SEED) != found.placeholder(b"t" * 32)
        assert re.fullmatch(r"[A-Za-z0-9_-]*cellblock[A-Za-z0-9]{20,}", one)
        if name == "GITHUB_TOKEN":
            assert (one[:4], len(one)) == ("ghp_", 40)


def test_hosts_and_places_are_given() -> None:
    cases: list[tuple[dict[str, Any], list[tuple[Any, ...]]]] = [
        ({"hosts": ["A.test"]}, [("a.test:443", ("Authorization: Bearer {}",), False)]),
        ({"hosts": ["a.test:8443"], "header": "X: {}"}, [("a.test:8443", ("X: {}",), False)]),
        ({"hosts": ["a.test"], "attach": True}, [("a.test:443", ("Authorization: Bearer {}",), True)]),
    ]
    for given, uses in cases:
        found = bind("ACME", Secret(**given))
        assert [(*use.hosts, use.header, use.attach) for use in found.uses] == uses


def test_a_secret_for_bodies_only_is_in_no_header() -> None:
    (use,) = bind("ACME", Secret(hosts=("a.test",), body=True, responses="pass")).uses
    assert (use.header, use.body, use.responses) == ((), True, "pass")
    assert {use.responses for use in bind("GITHUB_TOKEN", Secret(responses="pass")).uses} == {"pass"}


def test_another_host_of_a_service_has_its_places() -> None:
    found = bind("GITHUB_TOKEN", Secret(hosts=("github.corp.test",)))
    assert {bool(use.basic) for use in found.uses} == {True, False}
    assert bind("GITHUB_TOKEN", Secret(hosts=("api.github.com",))).uses[0].basic == ""


def test_a_secret_is_for_exact_hosts() -> None:
    for host in ("*", "*.a.test", "a b", "a.test:80", "a@b.test", ""):
        with pytest.raises(InvalidInputError):
            bind("ACME", Secret(hosts=(host,)))


def test_an_unknown_name_needs_a_host() -> None:
    with pytest.raises(InvalidInputError, match="secret ACME has no host: name the hosts"):
        bind("ACME", Secret(source="env:ACME"))


def test_a_record_has_places_and_no_arguments_of_a_program() -> None:
    record = bind("GITHUB_TOKEN", Secret(source="command:show --pin 1234", hosts=("github.com", "a.test"))).record(1.5)
    assert (record.name, record.source, record.hosts) == ("GITHUB_TOKEN", "command:show", ("github.com:443", "a.test:443"))
    assert record.places == (
        "basic x-access-token:{}",
        "attach",
        "header Authorization: Bearer {}",
        "header Authorization: token {}",
    )
    assert record.last_used == 1.5
    other = bind("ACME", Secret(source="op://a/b/c", hosts=("a.test",), query="key", path="bot{}", body=True)).record()
    assert (other.source, other.places, other.last_used) == ("op://a/b/c", ("query key", "path bot{}", "body"), None)


def test_every_placeholder_is_recognised() -> None:
    found = bind("ACME", Secret(hosts=("a.test",)))
    assert all(has_placeholder([found.placeholder(bytes([number]) * 32).encode()]) for number in range(256))


def test_a_search_for_placeholders_takes_no_time() -> None:
    """The host searches, too: in requests by http://."""
    began = time.process_time()
    assert not has_placeholder([b"cellblock" * 7000, b"%63ellblock" * 6000])
    assert time.process_time() - began < 2  # quadratic time is 8 s
