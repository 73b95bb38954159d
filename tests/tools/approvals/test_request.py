"""What whoever decides is shown of a request: everything, and nothing that looks like something else."""

from __future__ import annotations

import pytest

from cellblock import ApprovalRequest

HIDDEN = {
    "hangul filler": "\u3164",
    "hangul choseong filler": "\u115f",
    "hangul jungseong filler": "\u1160",
    "halfwidth hangul filler": "\uffa0",
    "braille blank": "\u2800",
    "strike-through": "\u0336",
    "solidus overlay": "\u0338",
    "enclosing circle": "\u20dd",
    "combining grapheme joiner": "\u034f",
    "variation selector": "\ufe0f",
    "variation selector of the supplement": "\U000e0100",
    "tag letter": "\U000e0041",
    "right-to-left override": "\u202e",
    "isolate": "\u2066",
    "zero width space": "\u200b",
    "zero width joiner": "\u200d",
    "word joiner": "\u2060",
    "byte order mark": "\ufeff",
    "soft hyphen": "\u00ad",
    "no-break space": "\u00a0",
    "line separator": "\u2028",
    "escape": "\x1b",
    "musical null": "\U0001d159",
    "mongolian selector": "\u180b",
}


async def test_what_cannot_be_seen_is_escaped() -> None:
    for hidden in HIDDEN.values():
        escaped = hidden.encode("unicode_escape").decode()
        shown = str(
            ApprovalRequest(f"git{hidden}", f"st{hidden}atus", {f"na{hidden}me": f"va{hidden}lue", "in": [{hidden: 1}]})
        )
        assert hidden not in shown
        assert shown.isprintable()
        # Within quotation marks it may be Python's spelling of the same.
        assert shown.count(escaped) + shown.count(repr(hidden)[1:-1]) >= 5


async def test_what_changed_is_shown_and_nothing_hides_in_it() -> None:
    shown = str(ApprovalRequest("git", "push", {}, changed="it is destructive now\u202e\u3164"))
    assert shown == "git.push() (the tool has changed: it is destructive now\\u202e\\u3164)"


async def test_letters_of_any_language_are_left_as_they_are() -> None:
    text = "größe naïve Ελλάδα हिन्दी ภาษาไทย العربية 日本語 e\u0301 a\u0300\u0301"
    assert text in str(ApprovalRequest("git", "status", {"text": text}))


async def test_marks_are_not_piled_up() -> None:
    assert "o\u0300\u0301\\u0302\\u0303" in str(ApprovalRequest("git", "status", {"text": "o\u0300\u0301\u0302\u0303"}))


async def test_marks_of_other_scripts_are_not_piled_up_either() -> None:
    thai = "\u0e01" + "\u0e48" * 60
    assert str(ApprovalRequest("git", "status", {"text": thai})).count("\\u0e48") == 58


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a" + " " * 4200 + "b", "'a[4,200 spaces]b'"),
        ("a" + "\n" * 300 + "b", "'a[300 line ends]b'"),
        ("a" + " \n\t" * 10 + "b", "'a[10 spaces, 10 tabs, 10 line ends]b'"),
        ("def f():\n" + " " * 12 + "return 1\n\n\n", "'def f():\\n" + " " * 12 + "return 1\\n\\n\\n'"),
        ("\\n" * 20, repr("\\n" * 20)),  # no line ends, but what looks like them
        ("[4,200 spaces]", "'[4,200 spaces]'"),
    ],
    ids=["a spaces", "a line ends", "a mixture", "code", "backslashes", "what looks like it"],
)
async def test_long_runs_of_blanks_are_counted(text: str, shown: str) -> None:
    assert str(ApprovalRequest("git", "status", {"text": text})) == f"git.status(text={shown})"


async def test_what_is_withdrawn_stays_withdrawn() -> None:
    request = ApprovalRequest("git", "status", {})
    request.withdraw("nobody came")
    await request.accept()
    assert (request.state, request.reason, await request.response()) == ("withdrawn", "nobody came", False)
