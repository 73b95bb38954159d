"""References in schemas: what they name is found, and what they do not name costs little."""

from __future__ import annotations

from typing import Any

from cellblock.tools.apigen.schema import resolved


class Counting(dict[str, Any]):
    """Definitions that count how many of them are looked at."""

    seen = 0

    def values(self) -> Any:
        for value in super().values():
            self.seen += 1
            yield value


def test_a_reference_that_names_nothing_looks_at_few_definitions() -> None:
    definitions = Counting({f"d{number}": {} for number in range(20_000)})
    assert resolved({"$defs": definitions}, "#missing") is None
    assert definitions.seen <= 1_001


def test_references_lead_where_they_say() -> None:
    document = {"$defs": {"a": {"$anchor": "here", "type": "string"}, "b/c": {"type": "number"}}}
    assert resolved(document, "#here") == document["$defs"]["a"]
    assert resolved(document, "#/$defs/b~1c") == {"type": "number"}
    assert resolved(document, "#") == document
    assert resolved(document, "file:///etc/passwd") is None
