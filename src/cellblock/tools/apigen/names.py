"""Names of tools, classes and arguments in generated code: importable, distinct, and never reused.

Saved code outlives the schema that it was written for. A name therefore depends only on the named thing. If two tools would
share a name, neither gets it, and both names end in a digest of the original name. Code written before the second tool
existed then fails. Numbered names would make it call the other tool.
"""

from __future__ import annotations

import hashlib
import keyword
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence, Set

from cellblock.errors import InvalidInputError

_LONGEST = 64
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_DIGESTS = (8, 32)  # hexadecimal digits: the second is for names whose shorter digests a server made equal
_WORDS = re.compile(r"[A-Za-z0-9_./:\- ]*", re.ASCII)  # names of these characters lose only separators and case

# Attributes of `pydantic.BaseModel`: a field with such a name hides one, and pydantic warns or refuses.
# fmt: off
_OF_MODELS = frozenset((
    "construct", "copy", "dict", "from_orm", "json", "parse_file", "parse_obj", "parse_raw", "schema", "schema_json",
    "update_forward_refs", "validate",
))

_OF_MODELS_TOO = re.compile(
    r"model_(?:config|computed|construct|copy|dump|extra|fields|json|parametrized|post|rebuild|validate)"
)

# Names in the annotations of generated classes: a field with such a name would shadow it, because a class body is searched
# before its module.
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
    """Validate the name of a server for a package, and return it.

    Raises:
        InvalidInputError: The name is not a Python identifier of at most 64 ASCII letters, digits and underscores that
            begins with a letter, or it is a keyword.
    """
    if isinstance(name, str) and len(name) <= _LONGEST and _IDENTIFIER.fullmatch(name) and not keyword.iskeyword(name):
        return name
    raise InvalidInputError(
        f"server_name must name a Python package: a letter, then letters, digits and underscores, {_LONGEST} at most, "
        f"and not a keyword; {str(name)[:80]!r} is not"
    )


def module_names(tools: Iterable[str]) -> dict[str, str]:
    """Return the module name of each tool, in lower case.

    Args:
        tools: The tool names of one server.

    Returns:
        Tool → module, in the given order, without duplicates.
    """
    return _distinct({tool: _module_candidates(tool) for tool in tools})


def ambiguous_modules(tools: Iterable[str]) -> dict[str, list[str]]:
    """Return module names that several tools would share, so that none gets them.

    Args:
        tools: The tool names of one server.

    Returns:
        Module → its tools, in the given order.
    """
    wanted: dict[str, list[str]] = {}
    for tool in dict.fromkeys(tools):
        wanted.setdefault(_module_candidates(tool)[0], []).append(tool)
    return {module: several for module, several in wanted.items() if len(several) > 1}


def field_names(properties: Iterable[str], classes: Set[str]) -> dict[str, str]:
    """Return the attribute name of each property of a class.

    Args:
        properties: The JSON names of the properties.
        classes: The classes of the module, which a field must not shadow.

    Returns:
        Property → attribute, in the given order.
    """
    reserved = _OF_MODELS | _OF_ANNOTATIONS | classes
    wanted = {}
    for name in properties:
        attribute = _identifier(name, "field", soft=False)
        if _OF_MODELS_TOO.match(attribute):
            attribute = f"field_{attribute}"
        wanted[name] = _candidates(name, f"{attribute}_" if attribute in reserved else attribute)
    return _distinct(wanted)


def member_names(values: Iterable[str]) -> dict[str, str]:
    """Return the member name of each value of an enumeration."""
    wanted = {}
    for value in values:
        name = _identifier(value, "field", soft=False)
        wanted[value] = _candidates(value, f"{name}_" if name in _OF_ENUMS else name)
    return _distinct(wanted)


def class_name(hint: str) -> str:
    """Return the name of a class, in CapWords; other classes may get the same one.

    Args:
        hint: The name in the schema.

    Returns:
        A name without underscores, which nothing else in generated modules has.
    """
    words = re.findall(r"[A-Za-z0-9]+", _plain(hint))
    name = "".join(word[0].upper() + word[1:] for word in words)[:_LONGEST] or "Model"
    if not name[0].isalpha():
        name = f"Model{name}"
    return f"{name}Value" if name in _OF_MODULES else name


def with_digest(name: str, of: str, digits: int = _DIGESTS[0]) -> str:
    """Append a digest of the named thing to a name, within the length limit of names.

    Args:
        name: The ambiguous name.
        of: The named thing.
        digits: The length of the digest, in hexadecimal digits.

    Returns:
        The name, an underscore and the digest.
    """
    digest = hashlib.sha256(of.encode("utf-8", "surrogatepass")).hexdigest()[:digits]
    return f"{name[: _LONGEST - digits - 1].rstrip('_')}_{digest}"


def _identifier(name: str, prefix: str, *, soft: bool = True) -> str:
    """Return an identifier that resembles a name; other names may get the same one."""
    # Python normalizes identifiers to this form. Module names stay in ASCII, because they are file names.
    kept = unicodedata.normalize("NFKC", name[:1024])
    plain = kept if not soft and kept.isidentifier() else re.sub(r"[^A-Za-z0-9_]", "_", _plain(name))
    if not plain.strip("_") or not plain[0].isalpha():
        plain = f"{prefix}_{plain.strip('_')}".rstrip("_")
    if keyword.iskeyword(plain) or (soft and keyword.issoftkeyword(plain)):
        plain += "_"
    return plain


def _module_candidates(tool: str) -> Sequence[str]:
    return _candidates(tool, _identifier(tool.lower(), "tool").lower())


def _candidates(name: str, plain: str) -> Sequence[str]:
    """Return the possible identifiers of a name, best first.

    The plain identifier is excluded if it loses information: 查询 and 删除 are both ``tool``.
    """
    says_all = name == plain or (_WORDS.fullmatch(name) and plain not in ("tool", "field"))
    digested = [with_digest(plain, name, digits) for digits in _DIGESTS]
    return [plain, *digested] if says_all and len(plain) <= _LONGEST else digested


def _distinct(wanted: dict[str, Sequence[str]]) -> dict[str, str]:
    """Give each name its first candidate that is no other name's candidate."""
    claims = Counter(one for candidates in wanted.values() for one in candidates)
    return {name: next((one for one in candidates if claims[one] == 1), candidates[-1]) for name, candidates in wanted.items()}


def _plain(name: str) -> str:
    """Return a name with letters reduced to ASCII if possible: ``é`` becomes ``e``."""
    # Cut first: decomposing a megabyte takes long.
    decomposed = unicodedata.normalize("NFKD", name[:1024])
    return "".join(character for character in decomposed if not unicodedata.combining(character))
