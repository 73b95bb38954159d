"""Nothing on the trusted side parses without bound what others wrote.

Python's parsers hold the interpreter's lock until they are done, and take any time and memory. So every place that parses
anything is listed here, with the reason why its input is limited or trusted. All others use `cellblock.model.untrusted`.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from sources import PACKAGE, nodes

INSIDE = ("worker/", "launch/init/files_helper.py", "tools/calling/typed.py", "tools/calling/runner.py")
"""What runs in sessions, or in a process for the files of one: it slows down its own session only."""

OWN = "it reads what this user's processes, or root's, have written"
ARGUMENT = "it reads an argument of the command line, which its own user gave"
CLIENT = "it runs in a client, which waits for the answer of its own gateway"

PARSERS: dict[str, str] = {
    "adapters/code_sandboxes_results.py": "a program asks for the value of one output, which is limited like all output",
    "adapters/dspy.py": "a program asks for the value of one result, whose text is limited",
    "adapters/inspect_ai.py": OWN,
    "cluster/local.py": OWN,
    "cluster/node.py": OWN,
    "common/config.py": "bytes, lines, keys and dots are counted first",
    "common/package_files.py": "files of this user, of 16 MiB at most; what other programs send is JSON without files",
    "fronts/cli/actions.py": ARGUMENT,
    "fronts/cli/approval_commands.py": OWN,
    "fronts/cli/arguments.py": ARGUMENT,
    "fronts/cli/forms.py": ARGUMENT,
    "fronts/client/calls.py": CLIENT,
    "fronts/functions/session_functions.py": "it converts a program's own value",
    "fronts/jupyter/large_json.py": "it runs in a process of its own, with limits",
    "fronts/jupyter/main.py": ARGUMENT,
    "fronts/jupyter/zeromq.py": OWN,
    "fronts/kernel_mgr/client.py": CLIENT,
    "fronts/mcp_server/asking.py": "it reads the server's own state, which the SDK has checked by its seal",
    "fronts/mcp_server/client_input.py": "its only client is a program of this user, and the SDK decodes each message as well",
    "host/checkpoints/branches.py": OWN,
    "host/clones/pins.py": OWN,
    "host/eager.py": "texts have at most 64 KiB, parts of them 8 KiB, and a part is tried four times",
    "host/environments/sandbox.py": "an answer has 16 MiB and few values at most",
    "host/environments/store.py": OWN,
    "host/launch/srt.py": "it reads the answer of a program of this user, which runs no code of sessions",
    "host/programs/program_files.py": "a line describes one file; changes have 4 MiB at most; no session reaches the helper",
    "host/packages.py": OWN,
    "host/saved_file.py": "the directory of the archive is limited, and members are not compressed",
    "host/snapshots/archive.py": "it reads what `tar` of this package has written, member by member",
    "host/snapshots/journal.py": OWN,
    "service/store/networks.py": OWN,
    "host/snapshots/trash.py": OWN,
    "host/snapshots/written.py": OWN,
    "host/survival/keeping.py": OWN,
    "host/survival/recording.py": OWN,
    "host/survival/state_log.py": OWN,
    "launch/custody/custodian.py": OWN,
    "model/__init__.py": "a program asks for the value of one output, which is limited like all output",
    "model/decisions.py": "it reads arguments as `Call.freeze` has written them",
    "model/untrusted.py": "it is the reader",
    "model/variables.py": "a survey has 1 MiB at most, and a long one is read in a thread",
    "operations/data.py": "it evaluates annotations of this package",
    "service/daemon/handover.py": OWN,
    "service/daemon/remote.py": ARGUMENT,
    "service/named/arrival.py": OWN,
    "service/named/durable.py": OWN,
    "service/named/labels.py": OWN,
    "service/store/write_ahead_file.py": OWN,
    "service/store/session_registry.py": OWN,
    "tools/apigen/check.py": "it reads what `render` has written, within limits of its own",
    "tools/apigen/render.py": "it reads its own text, within limits of its own",
    "tools/apigen/shapes.py": "it reads its own text, within limits of its own",
    "tools/apigen/values.py": "it reads its own text, within limits of its own",
    "tools/approvals/call.py": "it reads arguments as `Call.freeze` has written them",
    "tools/calling/actions.py": "it runs in sessions, in `finder`, and on the command line; interfaces have 64 KiB at most",
    "tools/calling/catalog.py": "it runs in sessions, in `finder`, and on the command line",
    "tools/calling/finder.py": "it reads the daemon's request, in a process with limits",
    "tools/calling/interface.py": "it runs in sessions and in `finder`; a field has 500 characters at most",
    "tools/mcp/condense.py": "it is a process with limits",
    "tools/mcp/logins.py": OWN,
    "tools/mcp/params.py": "it converts a program's own value",
    "tools/mcp/stdio.py": "`LargeResults.condense` has counted the values, and messages have 1 MiB at most",
    "tools/registry/servers.py": OWN,
    "walls/keys/bindings.py": "it reads a file of this package",
    "walls/keys/session_keys.py": OWN,
    "walls/keys/sources.py": "the user's own file of credentials, of at most 1 MiB",
    "walls/keys/turnkey.py": "it reads what its host sends, in a process of its own",
    "walls/packages/index.py": "the directory of a wheel of the configured index, in a thread",
    "walls/packages/pages.py": "the page of the configured index, which is trusted, in a thread",
    "walls/sandbox/srt.py": "it reads settings that `read_settings` has parsed",
    "wire/datagrams.py": "a message has 160 KiB at most",
    "wire/frames.py": "a header has 64 KiB at most",
    "wire/packed.py": "it reads what the daemon of this user has packed",
    "wire/saved.py": "a state has 1 MiB at most",
    "wire/values/forms.py": "256 KiB at most, or by code that lets other threads run; pickles only on request",
    "walls/sandbox/gpus.py": "files of the machine's administrator, of 4 MiB at most",
}
"""Module → why what it parses is limited or trusted."""

_MODULES = frozenset(("json", "marshal", "pickle", "tomllib", "yaml", "plistlib", "configparser", "csv", "shelve"))
_NAMES = frozenset(
    (
        *("ast.parse", "ast.literal_eval", "compile", "eval", "exec", "JSONDecoder", "HTMLParser", "ElementTree", "minidom"),
        *("ZipFile", "tarfile.open", "receive_json", "validate_json", "model_validate_json", "raw_decode"),
    )
)
_WRITES = frozenset(("dump", "dumps", "JSONEncoder"))


def dotted(node: ast.AST) -> str:
    """Return the name of what is called, such as ``json.loads``."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def parsers(syntax: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the uses of parsers in a module, and imports of their functions by name."""
    for node in syntax:
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in _MODULES and name not in _WRITES:
                if name not in ("JSONDecodeError", "Error", "PickleError", "UnpicklingError", "TOMLDecodeError"):
                    yield node.lineno, f"{module}.{name}"
            case ast.ImportFrom(module=str() as module, names=names) if module.partition(".")[0] in _MODULES:
                yield from ((node.lineno, f"{module}.{one.name}") for one in names if one.name not in _WRITES)
            case ast.Call(func=function):
                name = dotted(function)
                if name in _NAMES or name.rpartition(".")[2] in _NAMES - {"compile", "eval", "exec"}:
                    yield node.lineno, name


def modules() -> Iterator[tuple[str, list[ast.AST]]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(INSIDE):
            yield name, nodes(path, ast.Attribute, ast.ImportFrom, ast.Call)


def test_every_parser_is_listed_with_its_reason() -> None:
    found = {name: [f"line {line}: {what}" for line, what in parsers(module)] for name, module in modules()}
    new = {name: uses for name, uses in found.items() if uses and name not in PARSERS}
    assert not new, f"use cellblock.model.untrusted, or say in {Path(__file__).name} why the input is limited: {new}"
    assert set(PARSERS) <= {name for name, uses in found.items() if uses}, "nothing is parsed there any more"


def test_parsers_are_seen() -> None:
    cases: list[str] = [
        "import json\njson.loads(x)",
        "from json import loads",
        "import tomllib\nread = tomllib.loads",
        "message = await socket.receive_json()",
        "Model.model_validate_json(body)",
        "import ast\nast.parse(text)",
        "zipfile.ZipFile(file)",
        "import pickle\npickle.Unpickler(file).load()",
    ]
    for source in cases:
        assert [*parsers(ast.walk(ast.parse(source)))]


# -- regular expressions -------------------------------------------------------------------------------------------------


def nested(pattern: str) -> bool:
    """Return whether a repetition without end has another within it, neither of which is atomic or possessive."""
    parser, codes = importlib.import_module("re._parser"), importlib.import_module("re._constants")

    def inside(tree: object, repeated: bool) -> bool:
        for code, value in tree:  # type: ignore[attr-defined]  # a pattern as `re` has parsed it
            if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
                without_end = value[1] is codes.MAXREPEAT
                if (without_end and repeated) or inside(value[2], repeated or without_end):
                    return True
            elif code is codes.SUBPATTERN:
                if inside(value[3], repeated):
                    return True
            elif code is codes.BRANCH and any(inside(branch, repeated) for branch in value[1]):
                return True
        return False

    return inside(parser.parse(pattern), False)


def patterns(syntax: Iterable[ast.AST]) -> Iterator[str]:
    for node in syntax:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re")), args=[ast.Constant(value=str() | bytes() as text), *_]):
                yield text if isinstance(text, str) else text.decode("latin-1")


def test_no_repetition_is_in_another() -> None:
    found = {(name, text) for name, module in modules() for text in patterns(module) if nested(text)}
    assert not found, "a pattern must take linear time: repeat up to a number, or possessively (*+)"


def test_repetitions_are_seen() -> None:
    cases: list[tuple[str, bool]] = [(r"(a+)+", True), (r"(a++)+", False), (r"a*b*", False)]
    for pattern, found in cases:
        assert nested(pattern) is found
