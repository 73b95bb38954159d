"""What a server writes stays text in generated modules, and source in which it does not is refused."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest

from cellblock.tools.apigen.check import check_source
from cellblock.tools.apigen.render import render, render_package
from cellblock.tools.calling.content import ToolSpec

EVIL = "__import__('os').system('touch /tmp/owned')"
PAYLOADS = [
    f'"""\n{EVIL}\n"""',
    f"'''\n{EVIL}\n'''",
    f'\\"""\n{EVIL}\n#',
    f'ends with a backslash \\" + {EVIL} + "\\',
    f'"" "" """ + {EVIL} + """',
    f"{{{EVIL}}}",
    f"%s {{0}} {{{{{EVIL}}}}}",
    f"\r\n{EVIL}\r",
    f"\x0c{EVIL}\x0b\x1c\x85\u2028{EVIL}\u2029",
    f"\x00{EVIL}",
    f"\\N{{LATIN SMALL LETTER A}}\\x22\\x22\\x22\\n{EVIL}",
    f"\\u0022\\u0022\\u0022\n{EVIL}",
    f"# -*- coding: utf-7 -*-\n+ACIAIgAi-\n{EVIL}",
    f"\udc22\udc22\n{EVIL}",
    f"x: int = {EVIL}",
    f"){EVIL}#",
    f"]\n{EVIL}\nx: Literal['",
    f"\u202e{EVIL}\u2066\u200b\ufeff",
    f'{"x" * 200}"""\n{EVIL}',
    '"' + 7 * "\\" + f'"""{EVIL}"""',
]


def specs(payload: str) -> list[ToolSpec]:
    """Return tools with a text of the server's everywhere that one can be."""
    schema: dict[str, Any] = {
        "title": payload,
        "description": payload,
        "type": "object",
        "required": [payload],
        "properties": {
            payload: {"description": payload, "title": payload, "type": "string", "default": payload, "pattern": payload},
            "one": {"enum": [payload, "a"], "description": payload},
            "two": {"const": payload},
            "three": {"$ref": f"#/$defs/{payload}"},
            "four": {"type": payload, "format": payload, "examples": [payload], "customTypePath": payload},
            "five": {"oneOf": [{"title": payload, "type": "object", "properties": {payload: {"const": payload}}}]},
            "six": {"type": "object", "additionalProperties": {"enum": [payload]}, "default": {payload: payload}},
        },
        "$defs": {payload: {"title": payload, "type": "object", "properties": {payload: {"type": "integer"}}}},
    }
    return [ToolSpec("tool", payload, schema, schema), ToolSpec(payload, "", {}), ToolSpec("other", payload, {})]


def test_a_text_that_would_be_code_stays_text() -> None:
    for payload in PAYLOADS:
        modules = list(render(specs(payload)))
        sources = [module.source for module in modules] + [render_package("server", modules)]
        for source in sources:
            tree = ast.parse(source.encode())  # as Python reads it: with whatever encoding it names
            assert "__import__" not in {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            assert "system" not in {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for module in modules:
            assert module.tool in (payload, "tool", "other")
            check_source(module.source, module.tool)


SOURCE = next(iter(render([ToolSpec("push", "Pushes.", {"type": "object", "properties": {"a": {"type": "string"}}})]))).source


def test_a_module_calls_its_own_tool_alone() -> None:
    with pytest.raises(ValueError, match="calls its tool"):
        check_source(re.sub(r"(['\"])push\1", "'delete'", SOURCE), "push")
