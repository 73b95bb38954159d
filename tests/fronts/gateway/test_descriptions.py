"""The description of the API explains the options of sessions."""

from __future__ import annotations

from cellblock.fronts.gateway.models import KernelCreateRequest, SessionCreateRequest, Strict
from cellblock.service.named.json_options import DECLARATIONS


def test_options_of_sessions_are_described() -> None:
    """Each that a daemon takes, with its meaning: from its declaration alone."""
    cases: list[type[Strict]] = [KernelCreateRequest, SessionCreateRequest]
    for model in cases:
        options = model.model_json_schema()["properties"]["options"]
        assert options["properties"].keys() == {name for names in DECLARATIONS.values() for name in names}
        assert [name for name, one in options["properties"].items() if not one["description"]] == []
        assert options["properties"]["idle_timeout"]["default"] == 1800.0
        assert options["properties"]["approve"]["enum"] == ["auto", "ask"]
        assert "$ref" not in str(options)
