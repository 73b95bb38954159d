"""Makes pages of a site from documents that are written to be read in the repository, and adds what agents look for."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pages import modules, problems, requests, wire

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[2]
SKILL = Path(__file__).parent / "SKILL.md"
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
_PICTURE = re.compile(r"!\[([^\]]*)\]\(docs/([^)\s]+)\)")
_ALERT = re.compile(r"^> \[!(\w+)\]\n((?:>.*\n)+)", re.MULTILINE)
_SECTION = re.compile(r"^  - ([^:\n]+):(?: (\S+\.md))?\n((?:      .*\n?)*)", re.MULTILINE)
_PAGE = re.compile(r"^ +- ([^:\n]+): (\S+\.md)$", re.MULTILINE)
_GENERATED = {"README.md": "index.md", "CHANGELOG.md": "changes.md"}
_MADE = {
    "reference/modules.md": modules,
    "reference/messages.md": wire,
    "reference/requests.md": requests,
    "reference/problems.md": problems,
}
_FOR_USERS = ("Start", "Guides", "Sandbox")


def on_files(files: Files, config: Any) -> Files:
    """Add the README as the first page, the changes, and the pages that are generated from the code."""
    from mkdocs.structure.files import File  # the tests import this module without MkDocs

    for source, name in _GENERATED.items():
        text = _PICTURE.sub(r"![\1](\2)", (ROOT / source).read_text())
        files.append(File.generated(config, name, content=_LINK.sub(lambda link: _link(link, ""), text)))
    for name, made in _MADE.items():
        files.append(File.generated(config, name, content=made()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links to files that are no pages into plain text, and GitHub's alerts into admonitions."""
    if page.file.src_uri not in _GENERATED.values():
        folder = os.path.join("docs", os.path.dirname(page.file.src_uri))
        markdown = _LINK.sub(lambda link: _link(link, folder), markdown)
    return _ALERT.sub(_admonition, markdown)


def on_post_build(config: Any) -> None:
    """Add what agents look for."""
    write_for_agents(Path(config["site_dir"]))


def write_for_agents(site: Path) -> None:
    """Write ``llms.txt``, a line for each page; ``llms-full.txt``, the guides in one file; and the skill, with its index.

    Agents look for the index at the top of a host, below ``.well-known`` (https://github.com/cloudflare/agent-skills-discovery-rfc).
    """
    configuration = (ROOT / "mkdocs.yml").read_text()
    description = re.search(r"^site_description: (.+)$", configuration, re.MULTILINE)
    listed, whole = [f"# cellblock\n\n> {description[1] if description else ''}.\n"], []
    for section, pages in navigation(configuration).items():
        listed.append(f"\n## {section}\n\n")
        for title, name in pages:
            text = _text(name)
            if "\n::: " in text:  # names of objects, of which only the rendered page has the documentation
                listed.append(f"- [{title}]({name.removesuffix('.md')}/): reference\n")
                continue
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_text(text)
            listed.append(f"- [{title}]({name}): {first_sentence(text)}\n")
            whole += [text] if section in _FOR_USERS else []
    (site / "llms.txt").write_text("".join(listed))
    (site / "llms-full.txt").write_text("\n\n".join(whole))
    skills, skill = site / ".well-known" / "agent-skills", SKILL.read_bytes()
    name, about = (_field(skill.decode(), field) for field in ("name", "description"))
    (skills / name).mkdir(parents=True, exist_ok=True)
    (skills / name / "SKILL.md").write_bytes(skill)
    entry = {"name": name, "type": "skill-md", "description": about, "url": f"{name}/SKILL.md"}
    entry["digest"] = f"sha256:{hashlib.sha256(skill).hexdigest()}"
    index = {"$schema": "https://schemas.agentskills.io/discovery/0.2.0/schema.json", "skills": [entry]}
    (skills / "index.json").write_text(json.dumps(index, indent=2) + "\n")


def navigation(configuration: str) -> dict[str, list[tuple[str, str]]]:
    """Return the pages of the navigation by section, each with its title and its file."""
    _, _, text = configuration.partition("\nnav:\n")
    return {section: [(section, page)] if page else _PAGE.findall(below) for section, page, below in _SECTION.findall(text)}


def _text(name: str) -> str:
    """Return the text of a page."""
    if name in _MADE:
        return _MADE[name]()
    generated = {page: source for source, page in _GENERATED.items()}
    return (ROOT / generated[name] if name in generated else ROOT / "docs" / name).read_text()


def _link(link: re.Match[str], folder: str) -> str:
    """Return a link as it has to be in a page, or its text if it leads to what is not a page.

    Args:
        link: The link.
        folder: The folder of the document that has it; empty for the repository's top.
    """
    path, mark, place = link[2].partition("#")
    if not path or ":" in path:
        return link[0]
    target = os.path.normpath(os.path.join(folder, path))
    here = folder.removeprefix("docs").strip("/")
    if target in _GENERATED:
        return f"[{link[1]}]({os.path.relpath(_GENERATED[target], here or '.')}{mark}{place})"
    if target.startswith("docs/") and target.endswith((".md", ".png", ".svg")):
        return f"[{link[1]}]({os.path.relpath(target.removeprefix('docs/'), here or '.')}{mark}{place})"
    if (ROOT / target / "README.md").exists() and target.startswith("docs/"):
        return f"[{link[1]}]({os.path.relpath(target.removeprefix('docs/'), here or '.')}/README.md)"
    return link[1]


def _field(skill: str, name: str) -> str:
    """Return a field of a skill's front matter."""
    found = re.search(rf"^{name}: (.+)$", skill, re.MULTILINE)
    if found is None:
        raise ValueError(f"{SKILL} has no {name}")
    return found[1]


def first_sentence(text: str) -> str:
    """Return the first sentence of a page, which says what it is about. Code and tables come before it in some."""
    paragraphs = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE).split("\n\n")[1:]
    first = next((part for part in paragraphs if re.match(r"(- )?(\w|\*\*|`)", part)), "reference").removeprefix("- ")
    return re.split(r"(?<=[.!?]) ", _LINK.sub(r"\1", first).replace("\n", " "))[0].strip("*")


def _admonition(alert: re.Match[str]) -> str:
    lines = [line.removeprefix(">").removeprefix(" ") for line in alert[2].splitlines()]
    return f"!!! {alert[1].lower()}\n" + "".join(f"    {line}\n" if line else "\n" for line in lines)
