"""A folder's entries are like a dictionary, and a changed copy shares most of itself with the original."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cellblock.host.snapshots.entries import Entries, Entry, LeftOut
from cellblock.host.snapshots.file import Link

LINK, LEFT_OUT = Link("a", (0, 0)), LeftOut("it is large", folder=False)
NAMES = st.integers(0, 999).map(str)
CHANGES = st.dictionaries(NAMES, st.sampled_from([LINK, LEFT_OUT, None]))


@settings(max_examples=15)
@given(st.sampled_from([0, 1, 255, 256, 700]), st.lists(CHANGES))
def test_changed_copies_are_like_changed_dictionaries(number: int, changes: list[dict[str, Entry | None]]) -> None:
    expected: dict[str, Entry] = {str(name): LINK for name in range(number)}
    entries = Entries({**expected})
    for each in changes:
        before = {**entries}
        changed = entries.changed(each)
        assert {**entries} == before
        for name, entry in each.items():
            if entry is None:
                expected.pop(name, None)
            else:
                expected[name] = entry
        entries = changed
        assert dict(entries.items()) == expected
        assert len(entries) == len(expected)
        assert entries.special == {name for name, entry in expected.items() if entry is LEFT_OUT}
        assert [entries.getter(str(name)) for name in range(1000)] == [expected.get(str(name)) for name in range(1000)]


def test_a_changed_copy_shares_the_rest() -> None:
    entries = Entries({str(number): LINK for number in range(10_000)})
    changed = entries.changed({"1": None, "new": LINK})
    assert sum(one is not two for one, two in zip(entries.parts, changed.parts, strict=True)) <= 2
    grown = entries.changed({f"new {number}": LINK for number in range(30_000)})
    assert max(map(len, grown.parts)) < 400
    assert len(grown) == 40_000
