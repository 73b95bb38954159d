"""Names of tools, classes and arguments in generated code: importable, distinct and reproducible."""

from __future__ import annotations

import hashlib
import keyword
import re
import unicodedata
from collections.abc import Iterable, Mapping

from cellblock.errors import InvalidInputError

_LONGEST = 64
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)

# Attributes of `pydantic.BaseModel` itself: a field of that name hides one, and pydantic warns or refuses.
# fmt: off
_OF_MODELS = frozenset((
    "construct", "copy", "dict", "from_orm", "json", "parse_file", "parse_obj", "parse_raw", "schema", "schema_json",
    "update_forward_refs", "validate",
))

_OF_MODELS_TOO = re.compile(
    r"model_(?:config|computed|construct|copy|dump|extra|fields|json|parametrized|post|rebuild|validate)"
)

# Names in the annotations of generated classes: a field of that name would be taken for it, as a class body is searched before
# its module.
_OF_ANNOTATIONS = frozenset((
    "Annotated", "Any", "Field", "Literal", "bool", "dict", "float", "int", "list", "str", "tuple",
))
# fmt: on
_OF_MODULES = _OF_ANNOTATIONS | {
    "Enum",
    "False",
    "None",
    "Params",
    "ParamsModel",
    "Result",
    "ResultModel",
    "RootModel",
    "True",
}
_OF_ENUMS = frozenset(("mro", "name", "value", "names", "values"))


def check_server_name(name: object) -> str:
    """Return the name of a server if a package can have it.

    Args:
        name: The caller's name for the server.

    Returns:
        The name.

    Raises:
        InvalidInputError: It is not a Python identifier of at most 64 ASCII letters, digits and underscores that begins with a
            letter, or it is a keyword.
    """
    if isinstance(name, str) and len(name) <= _LONGEST and _IDENTIFIER.fullmatch(name) and not keyword.iskeyword(name):
        return name
    raise InvalidInputError(
        f"server_name must name a Python package: a letter, then letters, digits and underscores, {_LONGEST} at most, "
        f"and not a keyword; {str(name)[:80]!r} is not"
    )


def module_names(tools: Iterable[str]) -> dict[str, str]:
    """Name the module of each tool.

    A tool whose name is a good one keeps it, in lower case. The others are numbered if they collide; the order in which a
    server lists its tools makes no difference.

    Args:
        tools: The tools of one server, as it names them.

    Returns:
        Tool → module, in the order given; of tools that are listed twice, one.
    """
    tools = dict.fromkeys(tools)
    wanted = {tool: _identifier(tool.lower(), "tool") for tool in tools}
    given: dict[str, str] = {}
    taken: set[str] = set()
    for tool in sorted(tools, key=lambda tool: (wanted[tool] != tool, tool)):
        given[tool] = _free(wanted[tool], taken)
    return {tool: given[tool] for tool in tools}


def field_names(properties: Iterable[str], classes: Iterable[str]) -> dict[str, str]:
    """Name the attribute of each property of a class.

    Args:
        properties: The properties, as JSON names them.
        classes: The classes of the module, which a field must not be taken for.

    Returns:
        Property → attribute, in the order given.
    """
    properties = dict.fromkeys(properties)
    reserved = _OF_MODELS | _OF_ANNOTATIONS | set(classes)
    wanted = {}
    for name in properties:
        attribute = _identifier(name, "field", soft=False)
        if _OF_MODELS_TOO.match(attribute):
            attribute = f"field_{attribute}"
        wanted[name] = f"{attribute}_" if attribute in reserved else attribute
    given: dict[str, str] = {}
    taken: set[str] = set()
    for name in sorted(properties, key=lambda name: (wanted[name] != name, name)):
        given[name] = _free(wanted[name], taken, fold=False)
    return {name: given[name] for name in properties}


def member_names(values: Iterable[str]) -> dict[str, str]:
    """Name the member of an enumeration for each of its values.

    Args:
        values: The values.

    Returns:
        Value → name, in the order given.
    """
    taken: set[str] = set()
    names = {}
    for value in dict.fromkeys(values):
        name = _identifier(value, "field", soft=False)
        names[value] = _free(f"{name}_" if name in _OF_ENUMS else name, taken, fold=False)
    return names


def class_name(hint: str, taken: Mapping[str, object] | set[str]) -> str:
    """Return a name for a class that nothing else in its module has.

    Args:
        hint: Its name in the schema.
        taken: The names of the classes that are there.

    Returns:
        A name in CapWords.
    """
    words = re.findall(r"[A-Za-z0-9]+", _plain(hint))
    name = "".join(word[0].upper() + word[1:] for word in words)[:_LONGEST] or "Model"
    if not name[0].isalpha():
        name = f"Model{name}"
    number, free = 2, name
    while free in taken or free in _OF_MODULES:
        free = f"{name}{number}"
        number += 1
    return free


def _identifier(name: str, prefix: str, *, soft: bool = True) -> str:
    """Return an identifier that looks like a name as far as possible; others may get the same one."""
    # Python reads identifiers in this form. Names of modules stay in ASCII, as they are names of files.
    kept = unicodedata.normalize("NFKC", name[:1024])
    plain = kept if not soft and kept.isidentifier() else re.sub(r"[^A-Za-z0-9_]", "_", _plain(name))
    if not plain.strip("_") or not plain[0].isalpha():
        plain = f"{prefix}_{plain.strip('_')}".rstrip("_")
    if keyword.iskeyword(plain) or (soft and keyword.issoftkeyword(plain)):
        plain += "_"
    if len(plain) > _LONGEST:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        plain = f"{plain[: _LONGEST - 9]}_{digest}"
    return plain


def _plain(name: str) -> str:
    """A name in ASCII where letters have a plain form: ``é`` is ``e``; the rest is left."""
    # Cut first: to decompose a megabyte takes a while.
    decomposed = unicodedata.normalize("NFKD", name[:1024])
    return "".join(character for character in decomposed if not unicodedata.combining(character))


def _free(name: str, taken: set[str], *, fold: bool = True) -> str:
    """Number a name until it is free, and take it."""
    number, free = 2, name
    while (key := free.lower() if fold else free) in taken:
        free = f"{name}_{number}"
        number += 1
    taken.add(key)
    return free
