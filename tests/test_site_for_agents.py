"""The site of the documents has what agents look for: a line for each page, and a skill whose index is right."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
INDEX = {
    "type": "object",
    "required": ["$schema", "skills"],
    "properties": {
        "$schema": {"const": "https://schemas.agentskills.io/discovery/0.2.0/schema.json"},
        "skills": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["name", "type", "description", "url", "digest"],
                "properties": {
                    "name": {"type": "string", "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$", "maxLength": 64},
                    "type": {"enum": ["skill-md", "archive"]},
                    "description": {"type": "string", "maxLength": 1024},
                    "digest": {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
                },
            },
        },
    },
}
"""What version 0.2.0 of the agent skills discovery asks of an index."""


@pytest.fixture(scope="module")
def hooks() -> Any:
    """The hooks of the site."""
    sys.path.append(str(ROOT / "docs" / "site"))  # as MkDocs does
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def site(hooks: Any, tmp_path: Path) -> Path:
    """What the build adds to the rendered pages."""
    hooks.write_for_agents(tmp_path)
    return tmp_path


def test_each_page_of_the_navigation_has_a_line_that_leads_to_it(hooks: Any, site: Path) -> None:
    configuration = (ROOT / "mkdocs.yml").read_text()
    pages = [page for pages in hooks.navigation(configuration).values() for _, page in pages]
    assert len(pages) == configuration.partition("\nnav:\n")[2].count(".md")
    lines = re.findall(r"^- \[.+?\]\((\S+)\): \S.*$", (site / "llms.txt").read_text(), re.MULTILINE)
    assert len(lines) == len(pages)
    assert [line for line in lines if not line.endswith("/") and not (site / line).exists()] == []
    assert [line for line in lines if line.endswith("/") and f"{line[:-1]}.md" not in pages] == []


def test_the_skill_is_in_an_index_as_agents_read_it(site: Path) -> None:
    folder = site / ".well-known" / "agent-skills"
    index = json.loads((folder / "index.json").read_text())
    jsonschema.validate(index, INDEX)
    (skill,) = index["skills"]
    text = (folder / skill["url"]).read_bytes()
    assert skill["digest"] == f"sha256:{hashlib.sha256(text).hexdigest()}"
    front = text.decode().split("---\n")[1]
    assert f"name: {skill['name']}\n" in front
    assert f"description: {skill['description']}\n" in front
    assert len(text) < 5_000
