"""Parameters of servers: what is documented is taken, everything else is named and refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock import InvalidInputError
from cellblock.tools.mcp.params import RemoteServer, StdioServer, digest_of, parse_params, resolve, secrets, stored_params

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,10}", fullmatch=True)


def test_a_program_as_documented() -> None:
    params = parse_params(
        "brave_search",
        {
            "command": "npx",
            "args": ["-y", "@brave/brave-search-mcp-server", "--transport", "stdio"],
            "env": {"BRAVE_API_KEY": "${BRAVE_API_KEY}"},
        },
    )
    assert isinstance(params, StdioServer)
    assert params.env == {"BRAVE_API_KEY": "${BRAVE_API_KEY}"}
    resolved = resolve(params, {"BRAVE_API_KEY": "secret ${HOME}", "HOME": "/root"})
    assert isinstance(resolved, StdioServer)
    assert resolved.env == {"BRAVE_API_KEY": "secret ${HOME}"}  # and not looked into again
    assert "secret" not in repr(params)


def test_a_url_as_documented() -> None:
    given = {"url": "https://api.githubcopilot.com/mcp/", "headers": {"Authorization": "Bearer ${GITHUB_API_KEY}"}}
    params = parse_params("github", given)
    assert params == RemoteServer("https://api.githubcopilot.com/mcp/", "http", given["headers"])  # type: ignore[arg-type]
    resolved = resolve(params, {"GITHUB_API_KEY": "t0k"})
    assert resolved.headers == {"Authorization": "Bearer t0k"}  # type: ignore[union-attr]


def test_the_transport_is_what_is_said_or_what_the_url_looks_like() -> None:
    cases: list[tuple[str, str | None, str]] = [
        ("http://h/mcp", None, "http"),
        ("http://h/sse", None, "sse"),
        ("http://h/api/sse/", None, "sse"),
        ("http://h/mcp/sse", None, "http"),
        ("http://h/?next=/sse", None, "http"),
        ("http://sse/", None, "http"),
        ("http://h/", None, "http"),
        ("http://h/sse", "streamable_http", "http"),
        ("http://h/sse", "http", "http"),
        ("http://h/mcp", "sse", "sse"),
    ]
    for url, said, transport in cases:
        params = parse_params("s", {"url": url} | ({"type": said} if said else {}))
        assert isinstance(params, RemoteServer)
        assert params.transport == transport


def test_what_is_wrong_is_named_and_so_is_the_server() -> None:
    cases: list[tuple[Any, str]] = [
        ([], "dict"),
        ({}, "command"),
        ({"command": "a", "url": "http://h"}, "command"),
        ({"command": ""}, "command"),
        ({"command": 3}, "command"),
        ({"command": "a\0b"}, "command"),
        ({"command": "a", "args": "b"}, "args"),
        ({"command": "a", "arg": ["b"]}, "did you mean 'args'"),
        ({"command": "a", "args": ["b", 3]}, r"args\[1\]"),
        ({"command": "a", "env": ["b"]}, "env"),
        ({"command": "a", "env": {"A": 1}}, r"env\[A\]"),
        ({"command": "a", "env": {"A=B": "1"}}, "A=B"),
        ({"command": "a", "env": {1: "1"}}, "env"),
        ({"command": "a", "cwd": 1}, "cwd"),
        ({"command": "a", "type": "http"}, "type"),
        ({"command": "a", "Args": []}, "Args"),
        ({"command": "a", "headers": {}}, "headers"),
        ({"url": "ftp://h"}, "url"),
        ({"url": "h/mcp"}, "url"),
        ({"url": "http://"}, "url"),
        ({"url": "http://h:99999"}, "url"),
        ({"url": "http://h/a b"}, "url"),
        ({"url": "http://h", "headers": {"A B": "c"}}, "A B"),
        ({"url": "http://h", "headers": {"A": "b\r\nC: d"}}, r"headers\[A\]"),
        ({"url": "http://h", "type": "websocket"}, "type"),
        ({"url": "http://h", "type": []}, "type"),
        ({"url": "http://h", "startup_timeout_sec": 0}, "startup_timeout_sec"),
        ({"command": "a", "startup_timeout_sec": True}, "startup_timeout_sec"),
        ({"command": "a", "args": ["b" * 300_000]}, "characters"),
    ]
    for data, key in cases:
        with pytest.raises(InvalidInputError, match=key) as caught:
            parse_params("my_server", data)
        assert "'my_server'" in str(caught.value)


def test_a_default_is_used_for_a_variable_that_is_not_set() -> None:
    cases: list[tuple[dict[str, str], str]] = [({}, "b c"), ({"A": ""}, "b c"), ({"A": "1"}, "1")]
    for environment, value in cases:
        assert resolve(parse_params("s", {"command": "a", "args": ["--x=${A:-b c}"]}), environment).args == (f"--x={value}",)  # type: ignore[union-attr]


def test_a_longer_start_is_another_limit_of_the_same_server() -> None:
    slow = parse_params("s", {"command": "a", "startup_timeout_sec": 90})
    assert slow.startup_timeout_sec == 90
    assert digest_of(slow) == digest_of(parse_params("s", {"command": "a"}))
    assert stored_params("s", slow.to_dict()) == slow


def test_a_variable_that_is_not_set_is_named() -> None:
    params = parse_params("s", {"command": "a", "args": ["--key=${KEY}"]})
    with pytest.raises(InvalidInputError, match=r"'my_server' refer to \$\{KEY\}, which is not set"):
        resolve(params, {}, server_name="my_server")


def test_what_a_variable_holds_cannot_break_a_header() -> None:
    for value in ("a\r\nX: y", "a\0b", "ü"):
        params = parse_params("s", {"url": "http://h", "headers": {"A": "${KEY}"}})
        with pytest.raises(InvalidInputError, match=r"headers\[A\]") as caught:
            resolve(params, {"KEY": value})
        assert value not in str(caught.value)


def test_a_url_out_of_a_variable_is_looked_at_when_it_is_there() -> None:
    params = parse_params("s", {"url": "${WHERE}"})
    assert resolve(params, {"WHERE": "http://h/sse"}) == RemoteServer("http://h/sse", "http")
    with pytest.raises(InvalidInputError, match="url"):
        resolve(params, {"WHERE": "file:///etc/passwd"})


def test_what_only_looks_like_a_reference_stays() -> None:
    for text in ("$HOME", "${}", "${1}", "${A-b}", "$${", "{HOME}"):
        assert resolve(StdioServer("a", (text,)), {"HOME": "no", "A": "no"}) == StdioServer("a", (text,))


@given(
    st.one_of(
        st.builds(
            StdioServer, texts.filter(bool), st.lists(texts).map(tuple), st.dictionaries(names, texts), st.none() | texts
        ),
        st.builds(
            RemoteServer,
            st.sampled_from(["http://h/mcp", "https://h:1/sse?a=${B}"]),
            st.sampled_from(["http", "sse"]),
            st.dictionaries(names, st.just("${TOKEN}")),
        ),
    )
)
def test_parameters_survive_being_stored(params: StdioServer | RemoteServer) -> None:
    stored = json.loads(json.dumps(params.to_dict()))
    assert stored_params("s", stored) == params
    assert stored_params("s", stored) == params


def test_configurations_of_other_clients_are_taken() -> None:
    for key in ("type", "transport"):
        assert parse_params("s", {"command": "x", key: "stdio", "disabled": False}) == StdioServer("x")
        assert parse_params("s", {"url": "http://h/sse", key: "http"}) == RemoteServer("http://h/sse", "http")
        with pytest.raises(InvalidInputError, match="'type' in the parameters of MCP server 's' must be one of"):
            parse_params("s", {"url": "http://h/sse", key: "pigeon"})


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(10_000):
        value = [value]
    return value


def test_what_is_wrong_can_have_any_size() -> None:
    cases: list[dict[Any, Any]] = [{10**5000: 1}, {"type": 10**5000}, {"disabled": 10**5000}, {"type": deep()}]
    for more in cases:
        with pytest.raises(InvalidInputError, match="in the parameters of MCP server 's'"):
            parse_params("s", {"command": "x", **more})


def test_types_that_disagree_and_servers_that_are_disabled_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"'transport' .* is not what 'type' says"):
        parse_params("s", {"url": "http://h/", "type": "http", "transport": "sse"})
    with pytest.raises(InvalidInputError, match=r"'disabled' .* is true: remove it"):
        parse_params("s", {"command": "x", "disabled": True})
    with pytest.raises(InvalidInputError, match=r"'disabled' .* must be true or false"):
        parse_params("s", {"command": "x", "disabled": "no"})


def test_a_variable_that_is_named_often_is_not_multiplied() -> None:
    params = parse_params("s", {"command": "x", "args": ["${A}" * 60_000]})
    with pytest.raises(InvalidInputError, match="more than"):
        resolve(params, {"A": "a" * 100_000})


def test_a_deeply_nested_sandbox_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"filesystem": deep}
    with pytest.raises(InvalidInputError):
        parse_params("s", {"command": "x", "sandbox": deep})
    while deep:  # Python would end it by recursion
        deep = deep.popitem()[1]


def test_a_login_is_part_of_the_parameters() -> None:
    cases: list[Any] = [
        "oauth",
        {"client_id": "me", "client_secret": "${SECRET}", "scopes": ["a", "b"], "callback_port": 4000},
    ]
    for auth in cases:
        given = {"type": "http", "url": "https://h/mcp", "headers": {}, "auth": auth}
        params = parse_params("s", given)
        assert params.to_dict() == given
        resolved = resolve(params, {"SECRET": "hidden"})
        assert digest_of(resolved) == digest_of(params)
        assert ("hidden" in secrets(params, {"SECRET": "hidden"})) == (auth != "oauth")
        assert ("hidden" in secrets(resolved, {})) == (auth != "oauth")


def test_a_wrong_login_is_named() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"auth": "basic"}, "'auth' in the parameters of MCP server 's' must be 'oauth' or a dict, not 'basic'"),
        ({"auth": {"client": "x"}}, r"auth\[client\]"),
        ({"auth": {"client_secret": "x"}}, "needs a client_id"),
        ({"auth": {"scopes": ["a b"]}}, "single scopes"),
        ({"auth": {"callback_port": 70000}}, "must be a port"),
        ({"auth": {"callback_port": True}}, "must be a port"),
        ({"auth": "oauth", "headers": {"authorization": "Bearer x"}}, "would replace the header Authorization"),
        ({"auth": "oauth", "url": "https://a:b@h.example/mcp"}, "the password in the URL"),
        ({"auth": "oauth", "url": "http://h.example/mcp"}, "needs a URL that starts with https://"),
    ]
    for login, said in cases:
        with pytest.raises(InvalidInputError, match=said):
            parse_params("s", {"url": "https://h/mcp"} | login)


def test_servers_on_this_machine_need_no_https() -> None:
    for host in ("127.0.0.1:4000", "localhost", "[::1]:4000"):
        parse_params("s", {"url": f"http://{host}/mcp", "auth": "oauth"})
