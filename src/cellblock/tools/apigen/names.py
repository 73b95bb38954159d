"""Names of tools, classes and arguments in generated code: importable, distinct, and never given to anything else.

Saved code outlives the schema that it was written for. So a name depends on what it names alone, or belongs to nothing: if two
tools would have one name, neither gets it, and each is named with a digest of its original name. Code that was written before
the second tool came then fails. Numbers would have made it call the other tool.
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
_DIGESTS = (8, 32)  # hexadecimal digits: the second is for tools of a server that made two names with equal first ones
_WORDS = re.compile(r"[A-Za-z0-9_./:\- ]*", re.ASCII)  # of these, only separators and case get lost in a name

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
    """Name the module of each tool, in lower case.

    Args:
        tools: The tools of one server, as it names them.

    Returns:
        Tool → module, in the order given; of tools that are listed twice, one.
    """
    return _distinct({tool: _module_candidates(tool) for tool in tools})


def ambiguous_modules(tools: Iterable[str]) -> dict[str, list[str]]:
    """Return the names of modules that several tools would have, so that none has them.

    Args:
        tools: The tools of one server, as it names them.

    Returns:
        Module → its tools, in the order given.
    """
    wanted: dict[str, list[str]] = {}
    for tool in dict.fromkeys(tools):
        wanted.setdefault(_module_candidates(tool)[0], []).append(tool)
    return {module: several for module, several in wanted.items() if len(several) > 1}


def field_names(properties: Iterable[str], classes: Set[str]) -> dict[str, str]:
    """Name the attribute of each property of a class.

    Args:
        properties: The properties, as JSON names them.
        classes: The classes of the module, which a field must not be taken for.

    Returns:
        Property → attribute, in the order given.
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
    """Name the member of an enumeration for each of its values.

    Args:
        values: The values.

    Returns:
        Value → name, in the order given.
    """
    wanted = {}
    for value in values:
        name = _identifier(value, "field", soft=False)
        wanted[value] = _candidates(value, f"{name}_" if name in _OF_ENUMS else name)
    return _distinct(wanted)


def class_name(hint: str) -> str:
    """Return the name of a class, in CapWords; others may get the same one.

    Args:
        hint: Its name in the schema.

    Returns:
        A name without underscores, which nothing else in generated modules has.
    """
    words = re.findall(r"[A-Za-z0-9]+", _plain(hint))
    name = "".join(word[0].upper() + word[1:] for word in words)[:_LONGEST] or "Model"
    if not name[0].isalpha():
        name = f"Model{name}"
    return f"{name}Value" if name in _OF_MODULES else name


def with_digest(name: str, of: str, digits: int = _DIGESTS[0]) -> str:
    """Return a name that ends in a digest of what it names, within the length of names.

    Args:
        name: The name, which something else would have, too.
        of: What is named.
        digits: The length of the digest, in hexadecimal digits.

    Returns:
        The name, an underscore and the digest.
    """
    digest = hashlib.sha256(of.encode("utf-8", "surrogatepass")).hexdigest()[:digits]
    return f"{name[: _LONGEST - digits - 1].rstrip('_')}_{digest}"


def _identifier(name: str, prefix: str, *, soft: bool = True) -> str:
    """Return an identifier that looks like a name as far as possible; others may get the same one."""
    # Python reads identifiers in this form. Names of modules stay in ASCII, as they are names of files.
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
    """Return the identifiers that something may have, best first.

    The plain one is not among them if it says less than the name does: 查询 and 删除 are both ``tool``.
    """
    says_all = name == plain or (_WORDS.fullmatch(name) and plain not in ("tool", "field"))
    digested = [with_digest(plain, name, digits) for digits in _DIGESTS]
    return [plain, *digested] if says_all and len(plain) <= _LONGEST else digested


def _distinct(wanted: dict[str, Sequence[str]]) -> dict[str, str]:
    """Give each name the first of its candidates that is a candidate of no other."""
    claims = Counter(one for candidates in wanted.values() for one in candidates)
    return {name: next((one for one in candidates if claims[one] == 1), candidates[-1]) for name, candidates in wanted.items()}


def _plain(name: str) -> str:
    """A name in ASCII where letters have a plain form: ``é`` is ``e``; the rest is left."""
    # Cut first: to decompose a megabyte takes a while.
    decomposed = unicodedata.normalize("NFKD", name[:1024])
    return "".join(character for character in decomposed if not unicodedata.combining(character))
