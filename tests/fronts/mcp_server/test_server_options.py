"""The options of the MCP server: what cannot be is refused before anything starts, and sessions get the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cellblock.errors import InvalidInputError
from cellblock.fronts.mcp_server.server_options import ServerOptions


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"workspace": Path("missing")}, "there is no such directory"),
        ({"workspace": Path("file")}, "it is not a directory"),
        ({"approve": "rules"}, "needs --rules FILE"),
        ({"auth": False, "host": "0.0.0.0"}, "without tokens, the server can only listen"),
        ({"auth": False, "host": "example.org"}, "without tokens, the server can only listen"),
        ({"cluster": True, "workspace": Path("/there"), "transport": "http"}, "leave --workspace out"),
    ],
)
def test_what_cannot_be_is_refused(
    given: dict[str, Any], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(InvalidInputError, match=complaint):
        ServerOptions(**given)


def test_a_token_is_drawn_unless_one_is_given_or_none_is_wanted() -> None:
    first, second = ServerOptions(), ServerOptions()
    assert len(first.token) > 30
    assert first.token != second.token
    assert first.token not in repr(first)
    assert ServerOptions(token="mine").token == "mine"
    assert ServerOptions(auth=False).token == ""


def test_paths_mean_the_directory_in_which_they_were_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ServerOptions(sandbox_config=Path("a.json"), rules=Path("r.json"))
    monkeypatch.chdir("/")
    assert (options.workspace, options.sandbox_config, options.rules) == (tmp_path, tmp_path / "a.json", tmp_path / "r.json")


def test_sessions_get_what_the_server_was_told(tmp_path: Path) -> None:
    options = ServerOptions(workspace=tmp_path, sandbox=False, approve="rules", rules=tmp_path / "r", isolate="landlock")
    session = options.session(tmp_path)
    assert (session["sandbox"], session["isolate"], session["rules"]) == (False, "landlock", str(tmp_path / "r"))
    assert session["approve"] == "ask"  # what rules do not decide, a person does
    assert session["tools"] == []
    assert options.session(tmp_path / "one")["tools"] == [str(tmp_path / "mcptools")]
    assert ServerOptions(workspace=tmp_path).session(tmp_path)["approve"] == "auto"
    assert ServerOptions(workspace=tmp_path, environment="data").session(tmp_path)["environment"] == "data"


def test_sessions_of_a_cluster_get_paths_of_its_nodes(tmp_path: Path) -> None:
    rules = tmp_path / "r.toml"
    rules.write_text('[[rule]]\ndecision = "allow"\nserver = "desk"\n')
    there = ServerOptions(cluster=True, workspace=Path("/there"), sandbox_config=Path("/there/s.json"), rules=rules)
    session = there.session(there.workspace)
    assert (session["working_dir"], session["sandbox_config"]) == ("/there", "/there/s.json")
    assert session["rules"] == {"rule": [{"decision": "allow", "server": "desk"}]}
    own = ServerOptions(cluster=True)
    assert own.own_folders
    assert not {"working_dir", "images_dir", "tools"} & own.session(None).keys()


def test_only_sessions_that_can_outlive_the_server_end_when_nobody_uses_them(tmp_path: Path) -> None:
    day = 24 * 3600
    assert ServerOptions().session(tmp_path)["idle_timeout"] is None
    assert ServerOptions(transport="http").session(tmp_path)["idle_timeout"] == day
    assert ServerOptions(cluster=True).session(None)["idle_timeout"] == day


def test_a_named_session_is_for_one_client_and_ends_when_it_is_not_used(tmp_path: Path) -> None:
    assert ServerOptions(workspace=tmp_path).session(tmp_path)["idle_timeout"] is None
    assert ServerOptions(workspace=tmp_path, session_name="a").session(tmp_path)["idle_timeout"] == 24 * 3600
    with pytest.raises(InvalidInputError, match="--session is for --transport stdio"):
        ServerOptions(workspace=tmp_path, session_name="a", transport="http")
