"""What no sandbox may do, whatever its policy says."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock.common import config
from cellblock.errors import InvalidInputError
from cellblock.host.checks import fit_policy
from cellblock.tools.mcp.sandboxed import ServerSandbox
from cellblock.walls.sandbox import probe
from cellblock.walls.sandbox.fitting import fit
from cellblock.walls.sandbox.policy import Policy, Resources
from cellblock.walls.sandbox.tiers import NATIVE, SRT


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of cellblock's state, which does not exist, behind a link."""
    (tmp_path / "link").symlink_to(tmp_path / "there")
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path / "link" / "state"))
    (tmp_path / "there").mkdir()
    return tmp_path / "there" / "state"


def test_the_state_is_neither_read_nor_written_and_what_the_host_runs_is_not_written(state: Path) -> None:
    given = Policy.parse({"filesystem": {"allowWrite": ["/"], "denyRead": ["/x"], "denyWrite": ["/y"]}})
    files = fit(given).filesystem
    assert {"/x", str(state)} <= {*files.deny_read}
    assert {"/y", str(state), *probe.own_directories()} <= {*files.deny_write}
    assert fit(fit(given)) == fit(given)


def test_sessions_and_servers_are_kept_from_the_same(state: Path) -> None:
    policy = Policy()
    assert fit_policy(policy, NATIVE) == fit_policy(policy, SRT) == fit(policy)
    assert not state.exists()
    sandbox = ServerSandbox("some", policy, None)
    assert sandbox.policy == fit(policy)
    assert state.is_dir()  # a server might otherwise make it


def test_limits_must_be_possible() -> None:
    with pytest.raises(InvalidInputError, match=r"resources\.cpu"):
        fit(Policy(resources=Resources(cpu=0)))


def test_a_policy_of_another_sandbox_fits_one_that_cannot_keep_names_from_being_made(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project" / ".git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    native = fit(Policy())
    assert str(config.variables_file()) in native.filesystem.deny_write
    again = fit(native, names_can_be_held=False)
    assert str(config.variables_file()) not in again.filesystem.deny_write
    assert str(state) in again.filesystem.deny_write


def test_where_nothing_is_kept_from_being_made_the_variables_of_servers_are_read_before(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain").mkdir()
    monkeypatch.chdir(tmp_path / "plain")
    assert str(config.variables_file()) not in fit(Policy()).filesystem.deny_write
    (tmp_path / "plain" / ".env").write_text("MADE_BY_CODE=1")
    assert "MADE_BY_CODE" not in config.server_environment()
