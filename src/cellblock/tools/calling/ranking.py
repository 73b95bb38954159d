"""Ranks tools by words, with the standard library alone.

A query and a tool rarely use the same words: one says "remove a folder", the other "delete_directory". Words are therefore
stemmed, some have synonyms, and misspelt words count as the closest known ones.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

from cellblock.tools.calling.catalog import Tool

# Okapi BM25 with its usual constants.
_SATURATION, _LENGTH = 1.2, 0.75
_NAME, _SERVER, _ARGUMENT = 3.0, 1.5, 0.4  # weights, where a word of the description has 1
_SYNONYM, _BEGINNING = 0.5, 0.4
"""Weights of words that are not the query's own: synonyms, and words that begin with a word of the query."""

_SIMILAR = 0.75
_LONGEST_WORD = 40
_MOST_WORDS = 30

_COMMON = frozenset(
    re.findall(
        r"\w+",
        "a all an and any are at as be been by can did do does for from has have how i if in into is it its me my of on or "
        "our please s so some than that the their them then there this to used using was we were what when where which who "
        "why will with would you your",
    )
)
"""Words that say nothing about a tool."""

_SYNONYMS = """
add create insert make new
change edit modify patch replace update
average sum aggregate aggregation
cancel stop abort
compare diff difference
count many number
delete drop erase remove
directory folder
docs documentation
download fetch retrieve
drive route directions
done finish status transition
error crash exception bug
execute run start trigger launch evaluate
find search look
get read retrieve return show view see
history log
hours time duration
image picture photo screenshot
inside content
internet web online
issue ticket
javascript js
latest newest recent
columns fields
container pod
memory cpu usage consumption resources
message post send
move rename
page website site
paragraphs block
person people user entity
repo repository
reset revert rollback undo unstage
rows records
send publish
size big large
slow performance plan explain
table schema
website url
write save store
"""


def rank(tools: Sequence[Tool], words: str) -> list[float]:
    """Return a score for each tool; 0 if no word is about it."""
    documents = [_weights(tool) for tool in tools]
    lengths = [sum(document.values()) for document in documents]
    mean = (sum(lengths) / len(lengths) if lengths else 0.0) or 1.0
    scores, covered = [0.0] * len(tools), [0.0] * len(tools)
    wanted = _query(words)
    for word in wanted:
        near = {word: 1.0, **dict.fromkeys(_synonyms().get(word, ()), _SYNONYM)}
        counts = [_count(document, word, near) for document in documents]
        found = sum(1 for count, _ in counts if count)
        rarity = math.log(1 + (len(tools) - found + 0.5) / (found + 0.5))
        for index, (count, share) in enumerate(counts):
            if count:
                norm = _SATURATION * (1 - _LENGTH + _LENGTH * lengths[index] / mean)
                scores[index] += rarity * count * (_SATURATION + 1) / (count + norm)
                covered[index] += share
    for index, tool in enumerate(tools):
        if scores[index]:
            name = {*stems(tool.name)} - {*stems(tool.server)}
            matched = sum(1 for word in name if word in wanted) / len(name) if name else 0.0
            scores[index] *= (0.5 + 0.5 * covered[index] / len(wanted)) * (1 + 0.4 * matched)
    return scores


def corrections(tools: Sequence[Tool], words: str) -> dict[str, str]:
    """Return the misspelt words of a query, each with the closest word of the tools."""
    spelt = {word for tool in tools for word in _words(f"{tool.server} {tool.name} {tool.description} {tool.arguments}")}
    known = {_stem(word) for word in spelt} | {*_synonyms()}
    found = {}
    for word in dict.fromkeys(_words(words)[:_MOST_WORDS]):
        if len(word) < 4 or word in _COMMON or _stem(word) in known or any(other.startswith(word) for other in spelt):
            continue
        candidates = [other for other in spelt if abs(len(other) - len(word)) <= 2 and len(other) <= _LONGEST_WORD]
        if near := difflib.get_close_matches(word, sorted(candidates), 1, _SIMILAR):
            found[word] = near[0]
    return found


def corrected(words: str, spelling: Mapping[str, str]) -> str:
    """Return a query with corrected words."""
    return " ".join(spelling.get(word, word) for word in _words(words))


def stems(text: str) -> list[str]:
    """Return the stems of the words of a text."""
    return [_stem(word) for word in _words(text)]


def _query(words: str) -> list[str]:
    return [*dict.fromkeys(_stem(word) for word in _words(words)[:_MOST_WORDS] if word not in _COMMON)]


def _weights(tool: Tool) -> Counter[str]:
    weights: Counter[str] = Counter()
    for text, weight in (
        (tool.server, _SERVER),
        (tool.name, _NAME),
        (tool.description, 1.0),
        (tool.arguments or tool.signature.partition("(")[2], _ARGUMENT),
    ):
        for word in stems(text):
            weights[word] += weight  # type: ignore[assignment]  # a Counter of floats
    return weights


def _count(document: Counter[str], word: str, near: Mapping[str, float]) -> tuple[float, float]:
    """Return the weight of a word in a tool, and the share of the query's word that this covers."""
    weight, share = max((document[other] * factor, factor) for other, factor in near.items())
    if not weight and len(word) > 2:
        begun = max((count for other, count in document.items() if other.startswith(word)), default=0.0)
        weight, share = _BEGINNING * begun, _BEGINNING
    return weight, share if weight else 0.0


def _words(text: str) -> list[str]:
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)  # getUser
    return re.findall(r"[^\W_]+", split.lower())


@cache
def _synonyms() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for line in _SYNONYMS.strip().splitlines():
        group = {*stems(line)}
        for word in group:
            found.setdefault(word, set()).update(group - {word})
    return found


def _stem(word: str) -> str:
    """Return a word without the endings of plurals and verb forms."""
    if len(word) > 4 and word.endswith(("ies", "ied")):
        return f"{word[:-3]}y"
    if len(word) > 9 and word.endswith("ication"):
        return f"{word[:-7]}y"
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-2] if word.endswith(("shes", "ches", "xes", "sses")) else word[:-1]
    for ending in ("ing", "ed"):
        if word.endswith(ending) and len(word) - len(ending) > 2 and re.search(r"[aeiouy]", word[: -len(ending)]):
            word = word[: -len(ending)]
            if word[-1] == word[-2] and word[-1] not in "lsz":
                word = word[:-1]
            break
    return word[:-1] if len(word) > 3 and word.endswith("e") else word
