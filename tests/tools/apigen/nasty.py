"""Schemas that a generator of code does not like, of which each must still give a module that can be used."""

from __future__ import annotations

from typing import Any

INJECTION = 'x"""\'\'\'\\"); import os; os.system("touch /tmp/cellblock-owned") #'


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def _nested_arrays(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return {"type": "object", "properties": {"a": schema}}


def _of(schema: Any, *, required: Any = False, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, **({"required": ["a"]} if required else {}), **more}


_TREE = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}}
_JSON = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/$defs/Json"}}]}
_BOMB = {
    f"L{level}": {"allOf": [{"$ref": f"#/$defs/L{level + 1}"}, {"$ref": f"#/$defs/L{level + 1}"}]} for level in range(40)
} | {"L40": {"type": "object", "properties": {"a": {"type": "string"}}}}
_WIDE = {
    f"W{level}": {"type": "object", "properties": {f"p{i}": {"anyOf": [{"$ref": f"#/$defs/W{level + 1}"}]} for i in range(9)}}
    for level in range(40)
} | {"W40": {"type": "string"}}

SCHEMAS: dict[str, tuple[Any, dict[str, Any]]] = {
    # name: (schema, arguments that it must take)
    "empty": ({}, {"anything": 1}),
    "true": (True, {"anything": [1]}),
    "false": (False, {}),
    "null": (None, {}),
    "a_list": ([1, 2], {}),
    "a_string": ("object", {}),
    "no_properties": ({"type": "object"}, {"a": None}),
    "no_arguments": ({"type": "object", "properties": {}, "additionalProperties": False}, {}),
    "recursive": (_of({"$ref": "#/$defs/Tree"}, **{"$defs": {"Tree": _TREE}}), {"a": {"kids": [{"kids": []}]}}),
    "recursive_root": (_of({"$ref": "#"}), {"a": {"a": {}}}),
    "recursive_json": (_of({"$ref": "#/$defs/Json"}, **{"$defs": {"Json": _JSON}}), {"a": ["x", ["y"]]}),
    "recursive_all_of": ({"allOf": [{"$ref": "#"}], "properties": {"a": {"type": "integer"}}}, {"a": 1}),
    "reference_to_itself": (_of({"$ref": "#/$defs/x"}, **{"$defs": {"x": {"$ref": "#/$defs/x"}}}), {"a": 1}),
    "references_in_a_ring": (
        _of({"$ref": "#/$defs/x"}, **{"$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"$ref": "#/$defs/x"}}}),
        {"a": 1},
    ),
    "any_of_in_a_ring": (_of({"$ref": "#/$defs/x"}, **{"$defs": {"x": {"anyOf": [{"$ref": "#/$defs/x"}]}}}), {"a": 1}),
    "reserved_words": (
        {"type": "object", "properties": {word: {"type": "string"} for word in ("from", "class", "None", "import", "async")}},
        {"from": "x", "class": "y", "None": "z"},
    ),
    "names_of_models": (
        {
            "type": "object",
            "properties": {
                word: {"type": "integer"}
                for word in (
                    "json",
                    "copy",
                    "schema",
                    "model_config",
                    "model_dump",
                    "model_fields",
                    "validate",
                    "dict",
                    "model_id",
                )
            },
            "required": ["json", "model_config"],
        },
        {"json": 1, "model_config": 2, "dict": 3, "model_id": 4},
    ),
    "names_of_types": (
        {
            "type": "object",
            "properties": {
                "str": {"type": "string", "default": "x"},
                "int": {"type": "integer", "default": 1},
                "list": {"type": "array", "items": {"type": "string"}},
                "Any": {},
                "Literal": {"enum": ["a"], "default": "a"},
                "Field": {"type": "string", "minLength": 1},
                "Params": {"type": "object", "properties": {"x": {"type": "string"}}},
                "BaseModel": {"type": "object", "properties": {"BaseModel": {"type": "string"}}},
                "run": {"type": "string"},
            },
        },
        {
            "str": "s",
            "int": 2,
            "list": ["x"],
            "Any": 1,
            "Literal": "a",
            "Params": {"x": "y"},
            "BaseModel": {"BaseModel": "z"},
            "run": "r",
        },
    ),
    "definitions_named_params": (
        _of(
            {"$ref": "#/$defs/Params"},
            **{"$defs": {"Params": _of({"$ref": "#/$defs/Result"}), "Result": _of({"type": "string"})}},
        ),
        {"a": {"a": {"a": "x"}}},
    ),
    "colliding_fields": (
        {"type": "object", "properties": {"a-b": {"type": "string"}, "a b": {"type": "string"}, "a.b": {"type": "string"}}},
        {"a-b": "1", "a b": "2", "a.b": "3"},
    ),
    "odd_fields": (
        {
            "type": "object",
            "properties": {name: {"type": "string"} for name in ("", "_", "__x__", "1st", "größe", "日本", "a b", "$x")},
        },
        {"": "0", "_": "1", "__x__": "2", "1st": "3", "größe": "4", "日本": "5", "a b": "6", "$x": "7"},
    ),
    "hidden_fields": (
        {
            "type": "object",
            "properties": {"a\u202eb": {"type": "string"}, "a\x00\n": {"type": "string"}, "\ud800": {"type": "string"}},
        },
        {"a\u202eb": "1", "a\x00\n": "2"},
    ),
    "root_one_of": (
        {"oneOf": [_of({"type": "string"}, required=True), {"type": "object", "properties": {"b": {"type": "integer"}}}]},
        {"a": "x"},
    ),
    "root_any_of_references": (
        {"type": "object", "anyOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}]}
        | {"$defs": {"A": _of({"type": "string"}, required=True), "B": _of({"type": "integer"}, required=True)}},
        {"a": 1},
    ),
    "root_any_of_required": (
        {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
            "additionalProperties": False,
        },
        {"b": "x"},
    ),
    "root_all_of": (
        {"allOf": [_of({"type": "string"}), {"properties": {"b": {"type": "integer"}}, "required": ["b"]}]},
        {"b": 1},
    ),
    "root_map": ({"type": "object", "additionalProperties": {"type": "integer"}}, {"x": 1, "y": 2}),
    "root_array": ({"type": "array", "items": {"type": "string"}}, {"a": 1}),
    "root_string": ({"type": "string"}, {}),
    "root_reference": ({"$ref": "#/$defs/A", "$defs": {"A": _of({"$ref": "#"}, required=False)}}, {"a": {"a": {}}}),
    "if_then_else": (
        {
            "type": "object",
            "properties": {"kind": {"enum": ["a", "b"]}},
            "if": {"properties": {"kind": {"const": "a"}}},
            "then": {"required": ["x"], "properties": {"x": {"type": "string"}}},
        },
        {"kind": "a", "x": "1"},
    ),
    "draft_4": (
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "id": "http://example.com/x",
            "type": "object",
            "definitions": {"p": {"type": "number", "minimum": 0, "exclusiveMinimum": True}},
            "properties": {
                "a": {"$ref": "#/definitions/p"},
                "b": {"type": "integer", "maximum": 9, "exclusiveMaximum": False},
            },
        },
        {"a": 0.5, "b": 9},
    ),
    "draft_7_tuple": (
        _of({"type": "array", "items": [{"type": "string"}, {"type": "integer"}], "minItems": 2, "maxItems": 2}),
        {"a": ["x", 1]},
    ),
    "draft_2019_recursive": (_of({"$recursiveRef": "#"}, **{"$recursiveAnchor": True}), {"a": {}}),
    "draft_2020_tuple": (
        _of({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": {"type": "boolean"}}),
        {"a": ["x", 1, True]},
    ),
    "draft_2020_dynamic": (
        _of(
            {"$dynamicRef": "#node"}, **{"$defs": {"n": {"$dynamicAnchor": "node", "type": "object", "properties": {"v": {}}}}}
        ),
        {"a": {"v": 1}},
    ),
    "absolute_references": (
        _of(
            {"$ref": "https://example.com/s.json#/$defs/x"},
            **{"$id": "https://example.com/s.json", "$defs": {"x": {"type": "string"}}},
        ),
        {"a": "x"},
    ),
    "remote_references": (
        {
            "type": "object",
            "properties": {
                "a": {"$ref": "https://example.com/schema.json"},
                "b": {"$ref": "file:///etc/passwd"},
                "c": {"$ref": "#/$defs/missing"},
                "d": {"$ref": "../../x.json#/y"},
                "e": {"$ref": 7},
            },
        },
        {"a": 1, "b": 2, "c": 3, "d": 4},
    ),
    "odd_pointers": (
        _of({"$ref": "#/$defs/a~1b%20c~0"}, **{"$defs": {"a/b c~": {"type": "string"}}})
        | {"properties": {"a": {"$ref": "#/$defs/a~1b%20c~0"}, "b": {"$ref": "#/properties/a"}}},
        {"a": "x", "b": "y"},
    ),
    "code_in_keywords": (
        {
            "type": "object",
            "title": INJECTION,
            "customTypePath": "subprocess.Popen",
            "customBasePath": "os.system",
            "x-python-type": "os.system",
            "x-python-import": {"module": "os", "name": "system"},
            "properties": {"a": {"type": "string", "customTypePath": "subprocess.Popen", "x-python-type": INJECTION}},
        },
        {"a": "x"},
    ),
    "code_in_strings": (
        {
            "type": "object",
            "description": INJECTION,
            "properties": {
                INJECTION: {"type": "string", "description": INJECTION, "default": INJECTION},
                "b": {"enum": [INJECTION, "x"], "default": INJECTION, "format": INJECTION},
                "c": {"type": "string", "pattern": INJECTION.replace("(", "").replace(")", "")},
                "d": {"const": INJECTION},
                "e": {"$ref": "#/$defs/" + INJECTION.replace("/", "~1")},
            },
            "required": [INJECTION],
            "$defs": {INJECTION: {"type": "object", "properties": {"x": {"type": "string"}}}},
        },
        {INJECTION: "x", "b": "x", "e": {"x": "y"}},
    ),
    "patterns": (
        {
            "type": "object",
            "properties": {
                "a": {"type": "string", "pattern": r"^\p{L}+$"},
                "b": {"type": "string", "pattern": "(?<=x)y(?!z)"},
                "c": {"type": "string", "pattern": "("},
                "d": {"type": "string", "pattern": "((a{1000}){1000}){1000}"},
                "e": {"type": "string", "pattern": "^(a+)+$"},
            },
        },
        {"a": "é", "b": "anything", "c": "x", "d": "x", "e": "aaaa"},
    ),
    "formats": (
        {
            "type": "object",
            "properties": {
                name: {"type": "string", "format": name} for name in ("email", "uri", "date-time", "uuid", "ipv4", "regex")
            },
        },
        {"email": "not one", "uri": "https://example.com", "date-time": "2026-01-01T00:00:00", "uuid": "x"},
    ),
    "gigantic": (
        {
            "type": "object",
            "properties": {f"p{i}": {"type": "string", "description": "x" * 5000} for i in range(2000)},
            "required": ["p0"],
        },
        {"p0": "x", "p1999": "y"},
    ),
    "huge_values": (
        {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "minimum": -(10**400), "maximum": 10**400, "default": 10**400},
                "b": {"type": "number", "maximum": 1e308, "multipleOf": 0.1},
                "c": {"type": "string", "maxLength": 10**30, "minLength": -5, "default": "x" * 10**6},
                "d": {"enum": list(range(5000))},
                "e": {"enum": ["x" * 10**6]},
                "f" * 10**5: {"type": "string"},
            },
        },
        {"a": 5, "b": 1.5, "c": "", "d": 1, "e": "x"},
    ),
    "deep_objects": (_nested(600), {"a": {"a": {}}}),
    "deep_arrays": (_nested_arrays(400), {"a": [[[[]]]]}),
    "all_of_bomb": ({"type": "object", "properties": {"a": {"$ref": "#/$defs/L0"}}, "$defs": _BOMB}, {"a": {"a": "x"}}),
    "any_of_bomb": ({"type": "object", "properties": {"a": {"$ref": "#/$defs/W0"}}, "$defs": _WIDE}, {"a": {}}),
    "wrong_types": (
        {
            "type": "object",
            "properties": {
                "a": {"type": "strnig"},
                "b": {"type": 7, "minimum": "x", "enum": "no", "pattern": 3},
                "c": {"type": ["string", None, "integer"], "anyOf": {}, "allOf": 7, "oneOf": []},
                "d": 5,
                "e": None,
                "f": {"type": "array", "items": 5, "minItems": "x", "prefixItems": {}},
                "g": {"type": "object", "properties": [], "required": "a", "additionalProperties": 3},
                "h": {"description": {"x": 1}, "default": {"x": [1]}, "title": 3},
            },
            "required": [1, None, "a", "missing"],
            "$defs": [],
        },
        {"a": 1, "b": 2, "c": "x", "d": 1, "f": [1], "g": {}, "missing": 0},
    ),
    "types_in_lists": (
        _of({"type": ["string", "integer", "null"], "minLength": 1, "minimum": 0, "default": None}, required=True),
        {"a": None},
    ),
    "mixed_enums": (
        {
            "type": "object",
            "properties": {
                "a": {"enum": ["x", 1, True, None]},
                "b": {"enum": [1.5, {"x": 1}, [2]]},
                "c": {"type": "string", "enum": []},
                "d": {"const": None},
                "e": {"type": "number", "enum": [0.5, 1.5]},
            },
        },
        {"a": True, "b": [2], "c": "x", "d": None, "e": 0.5},
    ),
    "wrong_defaults": (
        {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "default": "three"},
                "b": {"type": "string", "default": 3},
                "c": {"type": "array", "items": {"type": "string"}, "default": ["x"]},
                "d": {"enum": ["x", "y"], "default": "z"},
                "e": {"type": "boolean", "default": 1},
                "f": {"type": "integer", "default": True},
                "g": {"type": "number", "default": float("nan")},
                "h": {"type": "string", "maxLength": 1, "default": "too long"},
            },
        },
        {"a": 1, "b": "x", "c": ["y"]},
    ),
    "bounds_that_clash": (
        _of({"type": "integer", "minimum": 5.5, "maximum": 9.0, "multipleOf": 1.0, "exclusiveMinimum": 1.5}),
        {"a": 6},
    ),
    "nullable": (_of({"type": "string", "nullable": True}, required=True), {"a": None}),
    "pattern_properties": (
        {"type": "object", "properties": {}, "patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": False},
        {"x-a": "b"},
    ),
    "unions_of_objects": (
        _of(
            {
                "oneOf": [
                    {
                        "type": "object",
                        "properties": {"kind": {"const": "x"}, "x": {"type": "integer"}},
                        "required": ["kind", "x"],
                    },
                    {
                        "type": "object",
                        "properties": {"kind": {"const": "y"}, "y": {"type": "string"}},
                        "required": ["kind", "y"],
                    },
                ],
                "discriminator": {"propertyName": "kind"},
            }
        ),
        {"a": {"kind": "y", "y": "z"}},
    ),
    "inherited_twice": (
        _of(
            {"allOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}]},
            **{"$defs": {"A": _of({"type": "string"}), "B": {"allOf": [{"$ref": "#/$defs/A"}], "properties": {"b": {}}}}},
        ),
        {"a": {"a": "x", "b": 1}},
    ),
    "properties_that_clash": (
        {"allOf": [_of({"type": "string", "minLength": 1}), _of({"type": "string", "maxLength": 3})]},
        {"a": "xy"},
    ),
}
