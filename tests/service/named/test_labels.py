"""What the custodian calls named sessions."""

from __future__ import annotations

from cellblock.model.sessions import SessionRecord
from cellblock.service.named.labels import Label, ended, label_of

RECORD = SessionRecord("0" * 32, "one", "2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00", tags={"a": "ü"})


def test_a_label_has_all_that_is_needed_to_go_on() -> None:
    options = {"approve": "auto", "allow_hosts": ["example.org"]}
    label = Label.read(label_of(RECORD, options, "a", lasting=True))
    assert label == Label("0" * 32, record=RECORD, options=options, since="a")


def test_what_is_not_to_go_on_without_the_store_has_no_record() -> None:
    assert Label.read(label_of(RECORD, {}, "a", lasting=False)) == Label(RECORD.kernel_id, since="a")
    assert Label.read(label_of(RECORD, {"startup_code": "x" * 20_000}, "", lasting=True)) == Label(RECORD.kernel_id)
    assert Label.read(RECORD.kernel_id) == Label(RECORD.kernel_id)


def test_what_was_ended_says_so() -> None:
    assert Label.read(ended(RECORD.kernel_id)) == Label(RECORD.kernel_id, ended=True)
