"""What publishes the repository and its package fits the Makefile, pyproject.toml and the documents for contributors."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from cellblock import __version__

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TARGETS = {*re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)[0].split()}


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the jobs of all workflows with their names."""
    for path in WORKFLOWS:
        for name, job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].items():
            yield f"{path.stem}.{name}", job


def unknown(command: str) -> set[str]:
    """Return the targets of a call of make that the Makefile does not have."""
    words = command.partition("#")[0].split()[1:]
    return {*takewhile(lambda word: "=" not in word and not word.startswith("$"), words)} - TARGETS


def test_workflows_call_targets_of_the_makefile() -> None:
    called = [(name, step["run"]) for name, job in jobs() for step in job["steps"] if step.get("run", "").startswith("make ")]
    called += [
        (name, f"make {row['targets']}")
        for name, job in jobs()
        for row in job.get("strategy", {}).get("matrix", {}).get("include", [])
        if "targets" in row
    ]
    assert len(called) > 10
    assert [(name, command, unknown(command)) for name, command in called if unknown(command)] == []


def test_the_nightly_run_has_all_parts_of_which_ci_runs_a_sample() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    lists = re.findall(r"parts=\((.+)\)|for part in (.+?);", script)
    parts = {word for found in lists for words in found for word in words.split() if "$" not in word}
    parts |= {*re.findall(r"^make (?:--no-print-directory )?([a-z]+)$", script, re.MULTILINE)}
    nightly = dict(jobs())["nightly.long"]
    rows = [row["targets"] for row in nightly["strategy"]["matrix"]["include"]]
    assert {"slow", "containers", "clients", "site"} <= parts
    without_samples = {"test", "all-groups", "demo", "dist", "site", "workflows"}
    assert parts - {target for row in rows for target in row.split()} <= without_samples
    assert nightly["steps"][-1]["env"]["WHOLE"] == "1"


def test_documents_for_contributors_name_targets_of_the_makefile() -> None:
    for page in ("AGENTS.md", "CONTRIBUTING.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        commands = re.findall(r"^(make [^#\n]+)", text, re.MULTILINE) + re.findall(r"`(make [^`]+)`", text)
        assert len(commands) > 2
        assert [command for command in commands if unknown(command)] == []


def test_actions_are_pinned_to_one_commit_with_its_version() -> None:
    used = [line for path in WORKFLOWS for line in path.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    assert [line for line in used if not re.search(r"uses: [\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+$", line)] == []
    pins = {line.split("uses: ")[1] for line in used}
    assert len(pins) == len({pin.partition("@")[0] for pin in pins})


def test_jobs_have_few_permissions() -> None:
    assert [path.name for path in WORKFLOWS if yaml.safe_load(path.read_text(encoding="utf-8"))["permissions"] != {}] == []
    writing = {name: {key for key, value in job["permissions"].items() if value == "write"} for name, job in jobs()}
    assert {name: keys for name, keys in writing.items() if keys} == {
        "release.attest": {"attestations", "id-token"},
        "release.publish": {"id-token"},
        "release.release": {"contents"},
        "site.deploy": {"id-token", "pages"},
    }


def test_the_matrix_has_the_supported_releases_of_python() -> None:
    matrix = dict(jobs())["tests.test"]["strategy"]["matrix"]
    prefix = "Programming Language :: Python :: "
    assert matrix["python"] == [kind.removeprefix(prefix) for kind in PROJECT["project"]["classifiers"] if prefix in kind]
    assert [row for row in matrix["include"] if not (ROOT / ".ci" / "selected" / row["selected"]).exists()] == []


def test_the_owner_is_replaced_everywhere() -> None:
    # docs/releasing.md replaces it in the files that have it together with the name of the repository.
    folders = (".github", "docs", "plugin", ".claude-plugin", "deploy", ".devcontainer")
    files = [*ROOT.glob("*.*"), *(path for folder in folders for path in (ROOT / folder).rglob("*"))]
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in files if path.is_file()}
    named = {path for path, text in texts.items() if re.search(r"\bOWNER\b", text)}
    assert {path.name for path in named if "OWNER/cellblock" not in texts[path]} == set()
    assert ROOT / "server.json" in named or "OWNER" not in PROJECT["project"]["urls"]["Repository"]


def test_the_changelog_has_a_section_for_this_version() -> None:
    # A tag of this commit publishes it: .ci/dist.
    assert re.search(rf"^## \[{re.escape(__version__)}\] - 20\d\d-\d\d-\d\d\n", CHANGELOG, re.MULTILINE)


def test_the_development_container_uses_files_and_targets_of_the_repository() -> None:
    text = (ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8")
    container = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    used = [argument.partition("${localWorkspaceFolder}/")[2] for argument in container["runArgs"]]
    assert [path for path in used if not (ROOT / path).exists()] == []
    made = container["postCreateCommand"].partition("make ")[2].split()[0]
    assert f"\n{made.replace('.venv', '$(VENV)')}:" in MAKEFILE


def test_extras_are_for_users() -> None:
    assert {*PROJECT["project"]["optional-dependencies"]} & {*PROJECT["dependency-groups"]} == set()


def test_the_page_for_contributors_is_short() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split()) <= 1500
