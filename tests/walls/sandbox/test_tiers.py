"""The isolation tiers: each says all that differs, and another one needs nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from cellblock import CodeExecutor, Host, InvalidInputError
from cellblock.common.config import Isolate
from cellblock.walls.sandbox.policy import Filesystem, Policy
from cellblock.walls.sandbox.probe import Facts
from cellblock.walls.sandbox.srt import SrtPolicy
from cellblock.walls.sandbox.tiers import LANDLOCK, NATIVE, NONE, SRT, TIERS, Basis, Native, Tier, Unsandboxed
from cellblock.wire.control import Setup


def test_the_names_that_users_give_are_those_of_the_tiers() -> None:
    assert tuple(TIERS) == get_args(Isolate)
    assert all(tier.name == name for name, tier in TIERS.items())


@pytest.mark.parametrize("tier", TIERS.values(), ids=TIERS)
def test_a_tier_says_all_that_differs(tier: Tier) -> None:
    """A member that the protocol gains has no default: each tier says it, or neither mypy nor this test lets it through."""
    members = {*Tier.__annotations__, *(name for name in vars(Tier) if not name.startswith("_"))}
    assert {"name", "missing", "fit", "complete", "packages"} <= members
    assert members - vars(type(tier)).keys() == set()
    assert [not tier.sandboxed, tier.ours, tier.wrapped].count(True) == 1
    assert tier.basis in get_args(Basis)
    assert tier.basis == "none" or tier.ours


def test_a_policy_is_fitted_to_what_a_tier_can_hold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()
    for tier in TIERS.values():
        assert (str(tmp_path / ".env") in tier.fit(Policy()).filesystem.deny_write) is (tier is not LANDLOCK)
    own = SrtPolicy.parse({"filesystem": {"allowWrite": ["."]}})
    assert SRT.fit(own) == own


def test_only_a_sandbox_with_mounts_gives_the_workspace_a_second_name() -> None:
    named = Policy(Filesystem(home_is_workspace=True))
    assert NATIVE.fit(named).filesystem.home_is_workspace
    for tier in (LANDLOCK, SRT):
        with pytest.raises(InvalidInputError, match="home_is_workspace needs isolate='native'"):
            tier.fit(named)


def test_packages_are_where_code_can_see_them() -> None:
    assert [tier.packages("/place") for tier in (NATIVE, LANDLOCK, NONE)] == ["/tmp/.packages", "/place", "/place"]
    assert SRT.packages("/place") != SRT.packages("/place")


# -- a fifth tier ------------------------------------------------------------------------------------------------------


class _Marked(Unsandboxed):
    """As without a sandbox, but kernels can tell."""

    name: Any = "marked"

    def complete(self, setup: Setup, policy: Policy, facts: Facts, interpreter: tuple[str, ...] | None) -> Setup:
        return replace(setup, env={**setup.env, "TIER": "marked"})


class _Walled(Native):
    """As the native sandbox, with another home directory."""

    name: Any = "walled"
    home = "/tmp"


@pytest.fixture
def more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two more tiers."""
    for tier in (_Marked(), _Walled()):
        monkeypatch.setitem(TIERS, tier.name, tier)


@pytest.mark.slow
@pytest.mark.usefixtures("more")
async def test_a_fifth_tier_is_one_class(tmp_path: Path) -> None:
    """Nothing else in the package is changed."""
    marked: Any = "marked"
    async with Host(isolate=marked) as host, host.session(working_dir=tmp_path) as session:
        assert (host.isolate, session.isolate) == ("marked", "marked")
        assert (await session.execute("import os; os.environ['TIER']")).return_value == "'marked'"
        async with host.session(working_dir=tmp_path, isolate="none") as plain:
            assert (await plain.execute("import os; os.environ.get('TIER')")).return_value is None


@pytest.mark.slow
@pytest.mark.usefixtures("more")
async def test_a_sandbox_more_can_be_chosen_by_programs(tmp_path: Path) -> None:
    walled: Any = "walled"
    (outside := tmp_path / "outside").touch()
    (work := tmp_path / "work").mkdir()
    async with Host(isolate="none") as host, CodeExecutor(host=host, isolate=walled, working_dir=work) as executor:
        result = await executor.execute(f"import os; print(os.environ['HOME'], os.path.exists({str(outside)!r}))")
        assert result.text == "/tmp False"
    with pytest.raises(InvalidInputError, match="'native', 'landlock', 'srt' or 'walled', not 'marked'; the option"):
        CodeExecutor(isolate="marked")  # type: ignore[arg-type]
