"""Records of decisions have one form, at most 250 words, and a row in the index."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "docs" / "decisions"
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
LONGEST = 250
_TITLE = re.compile(r"# (\d+)\. (.+)")
_STATUS = re.compile(r"\*\*Status\.\*\* (Accepted(?:; (?:replaces|amends|amended by) [^;]+)*\.|Superseded by [^:]+: .+)")
_LINK = re.compile(r"\[(\d+)\]\((\d{4})-[\w-]+\.md\)")
_SECTIONS = ["Context", "Decision", "Rejected", "Consequences"]
_INVERSE = {"amends": "amended by", "replaces": "Superseded by"}


def title(record: Path) -> tuple[int, str]:
    """Return a record's number and title."""
    match = _TITLE.fullmatch(record.read_text().splitlines()[0])
    assert match is not None
    return int(match[1]), match[2]


def status(record: Path) -> str:
    """Return the paragraph that has a record's status, on one line."""
    return record.read_text().split("\n\n")[1].strip().replace("\n", " ")


def named(record: Path, relation: str) -> set[int]:
    """Return the numbers of the records that a record's status names with a relation."""
    return {int(number) for part in status(record).split(";") if relation in part for number, _ in _LINK.findall(part)}


def test_records_have_a_status_and_sections_in_few_words() -> None:
    for record in RECORDS:
        assert title(record)[0] == int(record.name[:4])
        assert _STATUS.fullmatch(status(record)), status(record)
        text = record.read_text()
        sections = re.findall(r"^\*\*(Context|Decision|Rejected|Consequences)\.\*\*\s", text, re.MULTILINE)
        if "Superseded" in status(record):
            assert (sections, len(text.strip().split("\n\n"))) == ([], 2), record.name
        else:
            assert sections in (_SECTIONS, [name for name in _SECTIONS if name != "Rejected"]), record.name
        assert len(text.split()) <= LONGEST, record.name


def test_a_record_that_changes_another_is_named_there() -> None:
    for relation, inverse in _INVERSE.items():
        forward = {(title(record)[0], other) for record in RECORDS for other in named(record, relation)}
        backward = {(other, title(record)[0]) for record in RECORDS for other in named(record, inverse)}
        assert forward == backward


def test_the_index_lists_every_record_by_number() -> None:
    rows = re.findall(r"^- \[(\d+)\. (.+)\]\((\S+)\)", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert rows == [(str(title(record)[0]), title(record)[1], record.name) for record in RECORDS]
