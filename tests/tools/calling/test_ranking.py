"""Tools are found by words that are not theirs; measured by a fixed set of servers and queries."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cellblock.tools.calling import search
from cellblock.tools.calling.catalog import Tool
from cellblock.tools.calling.ranking import corrected, corrections, rank

DATA = Path(__file__).parent
TOOLS = [
    Tool("files", "list_directory", "list_directory", "list_directory(path)", "List the entries of a directory.", "path"),
    Tool("git", "git_log", "git_log", "git_log(path)", "Show commits, and what they modify.", "path"),
    Tool("post", "submit", "submit", "submit(recipient)", "Hand in a letter.", "recipient The mailbox."),
]


@pytest.mark.slow
def test_the_set_of_real_servers_is_found_by_sixty_queries(tmp_path: Path) -> None:
    servers = catalogue(tmp_path)
    assert (len(servers), sum(map(len, servers.values()))) == (24, 317)
    queries = [line.rpartition(": ") for line in (DATA / "queries.txt").read_text().splitlines()]
    wanted = {words: {*expected.split(" | ")} for words, _, expected in queries}
    assert len(wanted) == 60
    found = {words: search.names(words, tmp_path) for words in wanted}
    first = [words for words, names in found.items() if wanted[words] & {*names[:1]}]
    in_three = [words for words, names in found.items() if wanted[words] & {*names[:3]}]
    assert len(first) >= 0.75 * 60, sorted(found.keys() - {*first})
    assert len(in_three) >= 0.9 * 60, sorted(found.keys() - {*in_three})


def catalogue(root: Path) -> dict[str, list[dict[str, str]]]:
    """Write the records of the servers in `catalogue.txt`, whose lines are servers, or ``tool(arguments) description``."""
    servers: dict[str, list[dict[str, str]]] = {}
    for line in (DATA / "catalogue.txt").read_text().splitlines():
        name, opened, rest = line.partition("(")
        if not opened:
            tools = servers[name] = []
            continue
        arguments, _, description = rest.partition(") ")
        module = re.sub(r"\W", "_", name.lower())
        tool = {"module": module, "name": name, "signature": f"{module}({arguments})", "description": description}
        tools.append(tool | {"arguments": arguments})
    for server, tools in servers.items():
        (root / server).mkdir()
        (root / server / ".cellblock.json").write_text(json.dumps({"generator": "cellblock", "tools": tools}))
    return servers


def test_a_misspelt_word_counts_as_the_closest_one() -> None:
    assert corrections(TOOLS, "shwo teh comits") == {"shwo": "show", "comits": "commits"}
    assert corrected("Shwo comits!", {"shwo": "show", "comits": "commits"}) == "show commits"
    assert corrections(TOOLS, "show commits for me, listing folders") == {}


def test_arguments_synonyms_and_forms_of_words_are_found() -> None:
    cases: list[tuple[str, str]] = [
        ("mailbox", "submit"),
        ("recipients", "submit"),
        ("retrieve a folder", "list_directory"),
        ("listing directories", "list_directory"),
        ("modified", "git_log"),
        ("committed", "git_log"),
    ]
    for words, best in cases:
        scores = rank(TOOLS, words)
        assert TOOLS[scores.index(max(scores))].name == best
