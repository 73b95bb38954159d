"""Runs the suites of the adapters with the newest and the lowest releases, and compares the table in docs/frameworks.md.

One line per suite. If the table differs from what came out, it is written anew, and the run fails: look at it, and commit it.

Each framework runs with one of its releases, with others on other days: all run with WHOLE=1, or if frameworks are named.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "frameworks.md"
BEGIN, END = "<!-- table of frameworks -->\n", "<!-- end -->"
RELEASES = ("lowest", "newest")


@dataclass(frozen=True)
class Framework:
    """One row of the table.

    Attributes:
        name: The name of its suite and of its extra.
        package: The distribution.
        suite: The suite that its makers publish, or "".
        not_supported: What does not work.
        forced: The list of releases that are installed against their wish, if it is in one: only the newest release. Such a
            list has an environment of its own, with the Python in its name.
    """

    name: str
    package: str
    suite: str
    not_supported: str
    forced: str = ""

    def list_for(self, release: str) -> str:
        """Return which list of releases it is in."""
        return self.forced if self.forced and release == "newest" else release

    def version(self, release: str) -> str:
        """Return its release in a list; "" if it is not there."""
        pins = (HERE / f"{self.list_for(release)}.txt").read_text(encoding="utf-8")
        found = re.search(rf"^{re.escape(self.package)}==([\w.]+)", pins, re.MULTILINE)
        return found[1] if found else ""


FRAMEWORKS = (
    Framework(
        "deepagents",
        "deepagents",
        "langchain-tests 1.1.9",
        "since 0.7.10, seven tests of the suite want what deepagents no longer does, with any backend",
    ),
    Framework("inspect-ai", "inspect-ai", "`self_check`", "other users (`exec(user=…)`), `connection()`"),
    Framework("pydantic-ai", "pydantic-ai-slim", "`workspaces.conformance`", "refs of another program"),
    Framework("openai-agents", "openai-agents", "", "`run_as`, exposed ports, mounts"),
    Framework("smolagents", "smolagents", "", "pickled values; streaming of output"),
    Framework("google-adk", "google-adk", "", "`optimize_data_file`; output files other than pictures that are shown"),
    Framework("llama-index", "llama-index-core", "", ""),
    Framework("dspy", "dspy", "", "callbacks of `dspy.PythonInterpreter`"),
    Framework("code-sandboxes", "code-sandboxes", "", "other contexts and languages; `envs` of one cell"),
    Framework("strands", "strands-agents", "", "an installation by pip: see below", forced="forced"),
    Framework("verifiers", "verifiers", "", "an installation by pip; tool servers; other users", forced="forced"),
    Framework("nemo-gym", "nemo-gym", "", "images, resources, ports; an installation by pip", forced="forced-3.12"),
    Framework("langchain-kernelbox", "langchain-kernelbox", "", "submodules of `kernelbox`"),
)


def interpreter_for(release: str) -> str:
    """Return the Python that a list wants: the one in its name, as uv finds it or pyenv has it, or this one."""
    version = release.partition("-")[2]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    return str(next(iter(sorted(pyenv.glob(f"{version}.*/bin/python"))), version)) if version else sys.executable


def python_of(release: str) -> Path:
    """Return the interpreter with the releases of a list, installed if the list or our own needs have changed."""
    place = ROOT / f".venv-frameworks-{release}"
    sources = (HERE / f"{release}.txt", HERE / "overrides.txt", ROOT / "pyproject.toml")
    wanted = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    stamp = place / "installed"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"Setting up {place.name}; this takes less than a minute, once.", flush=True)
        uv: list[str | Path] = [sys.executable, "-m", "uv"]
        subprocess.run([*uv, "venv", "--quiet", "--clear", "--python", interpreter_for(release), place], check=True)
        ours: list[str | Path] = ["--editable", ROOT, "--group", f"{ROOT / 'pyproject.toml'}:frameworks"]
        ours += ["--requirement", HERE / f"{release}.txt"]
        ours += ["--override", HERE / "overrides.txt"] if release.startswith("forced") else []
        subprocess.run([*uv, "pip", "install", "--quiet", "--python", place / "bin" / "python", *ours], check=True)
        stamp.write_text(wanted)
    return place / "bin" / "python"


def run_suite(python: Path, framework: Framework) -> tuple[dict[str, int], str, bool]:
    """Run a suite; return its counts, a line about them, and whether something failed."""
    counts_file = python.parents[1] / f"counts-{framework.name}.json"
    suite = HERE / f"suite_{framework.name.replace('-', '_')}.py"
    command: list[str | Path] = [python, "-m", "pytest", "-q", "-rfE", "--tb=short", "-c", HERE / "pytest.ini"]
    command += ["--rootdir", HERE, "--confcutdir", HERE, suite]
    environment = {**os.environ, "FRAMEWORKS_COUNTS": str(counts_file), "PYTHONPATH": ""}
    began = time.monotonic()
    for _ in range(2 if os.environ.get("AGAIN") else 1):  # as in the Makefile: the machine may have been busy
        counts_file.unlink(missing_ok=True)
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode == 0:
            break
        print(done.stdout + done.stderr)
    counts = json.loads(counts_file.read_text()) if counts_file.exists() else {}
    kinds = [(name, share(counts, kind)) for kind, name in (("published", "suite"), ("own", "ours"))]
    line = ", ".join(f"{name} {passed}" for name, passed in kinds if passed)
    return counts, f"{line} ({time.monotonic() - began:.0f} s)", done.returncode != 0


def share(counts: dict[str, int], kind: str) -> str:
    """Return "passed of collected" for the tests of a kind; "" if there are none."""
    of_kind = {name: count for name, count in counts.items() if name.startswith(f"{kind} ")}
    return f"{of_kind.get(f'{kind} passed', 0)} of {sum(of_kind.values())}" if of_kind else ""


def table(results: dict[tuple[str, str], dict[str, int]], written: str) -> str:
    """Return the table as Markdown, with the shares of the written one for suites without results."""
    rows = {cells[0]: cells for cells in (line.strip("| ").split(" | ") for line in written.splitlines())}
    lines = [
        "| framework | lowest, newest | its makers' suite | passed, lowest | newest | ours, lowest | newest | not supported |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for framework in FRAMEWORKS:
        versions = ", ".join(filter(None, (framework.version(release) for release in RELEASES)))
        name = f"`{framework.package}`"
        columns = [(release, kind) for kind in ("published", "own") for release in RELEASES]
        shares = rows[name][3:7] if name in rows else ["–"] * len(columns)
        for number, (release, kind) in enumerate(columns):
            if (counts := results.get((release, framework.name))) is not None:
                shares[number] = share(counts, kind) or "–"
        cells = [name, versions, framework.suite or "–", *shares, framework.not_supported or "–"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def runs_of(only: list[str]) -> list[tuple[str, Framework]]:
    """Return which frameworks run with which releases: those that are named, all, or a sample, of which it says so."""
    found = [
        (release, framework)
        for release in RELEASES
        for framework in FRAMEWORKS
        if framework.version(release) and (not only or framework.name in only)
    ]
    if only or os.environ.get("WHOLE"):
        return found
    seed = os.environ.get("SAMPLE_SEED") or f"{datetime.now(UTC):%Y-%m-%d}"
    sample: list[tuple[str, Framework]] = []
    for framework in FRAMEWORKS:
        releases = [release for release, other in found if other is framework]
        sample.append((random.Random(f"{seed}{framework.name}").choice(releases), framework))
    print(f"a sample left out {len(found) - len(sample)} suites (SAMPLE_SEED={seed}); WHOLE=1 runs them", flush=True)
    return sample


def main(only: list[str]) -> int:
    """Run the suites, or those that are named; return the exit status."""
    runs = runs_of(only)
    lists = dict.fromkeys(framework.list_for(release) for release, framework in runs)
    pythons = {pins: python_of(pins) for pins in lists}
    results: dict[tuple[str, str], dict[str, int]] = {}
    failed = 0
    # Two at a time, as the tests of a suite run one after the other.
    with ThreadPoolExecutor(2) as pool:
        waiting = {
            pool.submit(run_suite, pythons[framework.list_for(release)], framework): (release, framework)
            for release, framework in runs
        }
        for done in as_completed(waiting):
            release, framework = waiting[done]
            results[release, framework.name], line, broken = done.result()
            print(f"{framework.name} {framework.version(release)}: {line}", flush=True)
            failed += broken
    if failed or only:
        return bool(failed)
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    old, after = rest.split(END, 1)
    new = table(results, old)
    if new != old:
        PAGE.write_text(before + BEGIN + new + END + after, encoding="utf-8")
        print("The table in docs/frameworks.md was not what came out, and is written anew: look at it, and commit it.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
