"""The house rules, held on the syntax tree of every file.

A rule is a function from a module to its violations, and is shown a planted one. Limits go down.
"""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
HOUSE = ("client", "broker", "cli")
TOP_LEVEL = {"pyproject.toml", "broker", "client", "cli", "tests", "deploy", "README.md"}

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
LINE_CHARACTERS_MAX = 100


class Room(NamedTuple):
    """What the modules under one dotted name may import of this house, and of the outside."""

    allowed: tuple[str, ...]
    refused: tuple[str, ...] = ()
    stdlib_only: bool = False


def these(package, names):
    return tuple(f"{package}.{name}" for name in names.split())


PURE_WIRE = "errors records columns messages controller_messages group_messages quorum_messages"
# The longest name that fits a module is its room.
CONFIG_OF_TOPICS = ("hightide_broker.core.topic_config",)
ARROWS = {
    "hightide": Room(("hightide",), refused=("hightide.spark",)),
    "hightide.spark": Room(("hightide",)),
    "pyspark_hightide": Room(("pyspark_hightide", "hightide")),
    "hightide_broker": Room(("hightide_broker", "hightide")),
    "hightide_broker.core": Room(("hightide_broker.core", *these("hightide", PURE_WIRE))),
    "hightide_broker.storage": Room(
        these("hightide_broker", "storage ports")
        + these("hightide", "errors records columns bins ports")
    ),
    "hightide_broker.runtime": Room(
        ("hightide", *these("hightide_broker", "runtime core storage ports config config_keys"))
    ),
    "hightide_broker.config": Room(
        ("hightide.errors", "hightide_broker.config_keys", *CONFIG_OF_TOPICS), stdlib_only=True
    ),
    "hightide_broker.config_keys": Room((), stdlib_only=True),
    "hightide_broker.ports": Room(these("hightide", "ports records errors")),
    "hightide_cli": Room(("hightide_cli", "hightide_broker", "hightide", "pyspark_hightide")),
}
ARROW_EXCEPTIONS = {"hightide.testing": ("hightide_broker",)}
FIRST_PARTY = {name.partition(".")[0] for name in ARROWS}
REPLACEMENTS = {
    "trio": "decide without waiting and let the shell await",
    "asyncio": "decide without waiting and let the shell await",
    "os": "go through the Disk port, or take the value as an argument",
    "time": "take `now_ms` as an argument",
    "random": "take the drawn value as an argument",
    "logging": "return the fact and let the shell log it",
    "socket": "return the bytes and let the shell send them through the Network port",
    "threading": "stay on one thread and let the shell use a worker",
    "subprocess": "return the wish and let the shell start the process",
}
PURE_CLIENT = PURE_WIRE + " apis bins arrow wire accumulator partitioner subscription assignors"
PURE = {
    **{module: REPLACEMENTS.keys() for module in these("hightide", PURE_CLIENT)},
    "hightide_broker.core": REPLACEMENTS.keys(),
    "hightide_broker.storage": REPLACEMENTS.keys() - {"logging", "asyncio", "subprocess"},
}
CLOCK_READS = {*these("datetime.datetime", "now utcnow today"), "datetime.date.today"}

MAY_BE_HEAVY = ("hightide.spark", "hightide.arrow_rows")
HEAVY = ("pyarrow", "numpy", "pyspark", "lz4", "zstandard", *MAY_BE_HEAVY)
LIGHT_MAIN = {"cli/hightide_cli/main.py": {"hightide_cli", "click", *sys.stdlib_module_names}}

# {path: reason}; only the edge of a nursery or of a process is a reason.
ALLOWED_BROAD_EXCEPT = {
    "broker/hightide_broker/runtime/server.py": "a connection's edge: a bug ends that one only",
    "cli/hightide_cli/cluster.py": "stops what it started, and raises on",
    "cli/hightide_cli/main.py": "the process's edge",
    "client/hightide/background.py": "carries the block's exception around its nursery",
    "client/hightide/blocking.py": "carries an exception to the caller's thread",
    "client/hightide/portal.py": "carries an exception to the caller's thread",
    "client/hightide/consumer.py": "closes what it opened, and raises on",
    "client/hightide/rebalance.py": "carries what a listener raises to the caller",
}
CATCH_ALLS = {"Exception", "BaseException"}

LEFTOVERS = re.compile(r"\b(TO[D]O|FIX[M]E|X[X]X)\b")
FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef


class Module(NamedTuple):
    """One file: where it lies from the top of the repository, and what it says."""

    path: str
    source: str
    tree: ast.Module

    @property
    def in_house(self):
        return self.path.split("/")[0] in HOUSE

    @property
    def name(self):
        """The name it is imported by, less its source root; a package's ends in `.__init__`."""
        return ".".join(PurePosixPath(self.path).with_suffix("").parts[self.in_house :])

    def violation(self, line, why):
        return f"{self.path}:{line}: {why}"


def parse(path, source):
    return Module(path, source, ast.parse(source, filename=path))


@cache
def modules():
    folders = [REPOSITORY / folder for folder in (*HOUSE, "tests")]
    files = sorted(file for folder in folders for file in folder.rglob("[!.]*.py"))
    paths = [file.relative_to(REPOSITORY).as_posix() for file in files]
    return [parse(path, (REPOSITORY / path).read_text(encoding="utf-8")) for path in paths]


def within(name, package):
    return name == package or name.startswith(package + ".")


def nearest(name, table):
    """The longest key of `table` that `name` lies in, or None."""
    return max((key for key in table if within(name, key)), key=len, default=None)


def imports(module, nodes=None):
    """(line, dotted target, name it gets) of each import; `from a import b` counts as `a.b`."""
    for node in ast.walk(module.tree) if nodes is None else nodes:
        match node:
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                base = import_base(module, node)
                for each in names:
                    yield node.lineno, base + each.name, each.asname or each.name
            case ast.Call(func=func, args=[ast.Constant(value=str(target)), *_]):
                if last_name(func) in {"import_module", "__import__"}:
                    yield node.lineno, target, ""


def last_name(node):
    return getattr(node, "attr", None) or getattr(node, "id", None)


def import_base(module, node):
    """What stands before the imported names, with its last dot; dots in front are resolved."""
    level = getattr(node, "level", 0)
    package = module.name.split(".")[:-level] if level else []
    return "".join(f"{part}." for part in (*package, getattr(node, "module", None)) if part)


def at_load(node):
    """What runs when the module is imported: no function bodies, nothing for type checkers."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*FUNCTIONS, ast.Lambda)):
            continue
        if isinstance(child, ast.If) and last_name(child.test) == "TYPE_CHECKING":
            child = ast.Module(body=child.orelse, type_ignores=[])
        yield child
        yield from at_load(child)


def arrows(module):
    if not module.in_house:
        return []
    key = nearest(module.name, ARROWS)
    if key is None:
        return [module.violation(1, f"`{module.name}` has no room: give it a row in ARROWS")]
    extra = ARROW_EXCEPTIONS.get(nearest(module.name, ARROW_EXCEPTIONS), ())
    room = ARROWS[key]._replace(allowed=ARROWS[key].allowed + extra)
    return [
        module.violation(line, f"{key} must not import {target}; see ARROWS")
        for line, target, _ in imports(module)
        if not may_import(room, target)
    ]


def may_import(room, target):
    top = target.partition(".")[0]
    if top not in FIRST_PARTY:
        return not room.stdlib_only or top in sys.stdlib_module_names
    return bool(nearest(target, room.allowed)) and not nearest(target, room.refused)


def purity(module):
    room = nearest(module.name, PURE)
    if room is None:
        return []
    tops = [(line, target.partition(".")[0]) for line, target, _ in imports(module)]
    return [
        module.violation(line, f"{room} is free of `{top}`: {REPLACEMENTS[top]}")
        for line, top in [*tops, *((line, "time") for line in clock_reads(module))]
        if top in PURE[room]
    ]


def clock_reads(module):
    known_as = {name: target for _, target, name in imports(module)}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute):
            head, _, rest = ast.unparse(node).partition(".")
            if f"{known_as.get(head, head)}.{rest}" in CLOCK_READS:
                yield node.lineno


def lazy_imports(module):
    """Heavy libraries wait until they are needed, and the command line's first file stays light."""
    client = within(module.name, "hightide") and not nearest(module.name, MAY_BE_HEAVY)
    light = LIGHT_MAIN.get(module.path)
    return [
        module.violation(line, f"import `{what}` inside the function that needs it")
        for line, target, _ in imports(module, at_load(module.tree))
        if (client and (what := nearest(target, HEAVY)))
        or (light is not None and (what := target.partition(".")[0]) not in light)
    ]


def sizes(module):
    lines = module.source.removesuffix("\n").split("\n")
    sized = [(len(lines), len(lines), "lines in this file", FILE_LINES_MAX)]
    sized += [
        (at, len(line), "characters in this line", LINE_CHARACTERS_MAX)
        for at, line in enumerate(lines, 1)
    ]
    sized += [
        (
            node.lineno,
            node.end_lineno - node.lineno + 1,
            f"lines in {node.name}",
            FUNCTION_LINES_MAX,
        )
        for node in ast.walk(module.tree)
        if isinstance(node, FUNCTIONS)
    ]
    return [
        module.violation(at, f"{size} {what}: {limit} is the limit, split it")
        for at, size, what, limit in sized
        if size > limit
    ]


def docstring(module):
    why = "say in a docstring what this module is"
    return [] if ast.get_docstring(module.tree) else [module.violation(1, why)]


def bans(module):
    found = [
        module.violation(at, f"`{word.group()}`: do it, or file an issue")
        for at, line in enumerate(module.source.split("\n"), 1)
        for word in LEFTOVERS.finditer(line)
    ]
    may_print = not module.in_house or within(module.name, "hightide_cli")
    for node in ast.walk(module.tree):
        match node:
            case ast.Name(id="print") if not may_print:
                why = "`print`: only the command line talks; return, raise or log it"
            case ast.Name(id="breakpoint"):
                why = "`breakpoint`: take it out"
            case ast.Assert(test=ast.Constant(value=value)) if value:
                why = "this assert cannot fail: assert a condition"
            case ast.Assert(test=ast.Tuple(elts=[_, *_])):
                why = "this assert cannot fail, it asserts a tuple: drop the parentheses"
            case _:
                continue
        found.append(module.violation(node.lineno, why))
    return found


def broad_excepts(module, allowed=ALLOWED_BROAD_EXCEPT):
    if not module.in_house or module.path in allowed:
        return []
    why = "catches everything: name the errors, or list the file in ALLOWED_BROAD_EXCEPT"
    return [module.violation(line, why) for line in sorted(catch_alls(module.tree))]


def catch_alls(tree):
    for node in ast.walk(tree):
        caught = []
        if isinstance(node, ast.ExceptHandler):
            caught = getattr(node.type, "elts", [node.type])
        elif isinstance(node, ast.Call) and last_name(node.func) == "suppress":
            caught = node.args
        if any(each is None or last_name(each) in CATCH_ALLS for each in caught):
            yield node.lineno


def stale_allowances(allowed, known):
    catching = {module.path for module in known if any(catch_alls(module.tree))}
    idle = sorted(allowed.keys() - catching)
    return [f"{path}: catches nothing broad: strike it off" for path in idle]


def set_order(module):
    if not within(module.name, "hightide_broker.core"):
        return []
    return [
        module.violation(node.iter.lineno, "the order of a set is chance: sort it")
        for node in ast.walk(module.tree)
        if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)) and is_set(node.iter)
    ]


def is_set(node):
    match node:
        case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.Call(func=ast.Name(id="list" | "tuple" | "iter" | "enumerate"), args=[first, *_]):
            return is_set(first)
        case ast.BinOp(left=left, right=right):
            return is_set(left) or is_set(right)
    return False


def top_level(names):
    visible = {name for name in names if not name.startswith(".")}
    return [f"{name}: does not belong at the top" for name in sorted(visible - TOP_LEVEL)] + [
        f"{name}: is missing at the top" for name in sorted(TOP_LEVEL - visible)
    ]


def unfound_packages(paths, where):
    """Folders with code that setuptools would leave out of the wheel."""
    strangers = {path.split("/")[0] for path in paths} - set(where)
    packages = {folder for path in paths for folder in PurePosixPath(path).parents[:-2]}
    return [f"{root}: is not in `where` of packages.find" for root in sorted(strangers)] + [
        f"{package}: has no __init__.py"
        for package in sorted(packages)
        if f"{package}/__init__.py" not in paths
    ]


RULES = (arrows, purity, lazy_imports, sizes, docstring, bans, broad_excepts, set_order)


def assert_none(violations):
    if violations:
        pytest.fail("\n".join(violations), pytrace=False)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_module_keeps_the_rule(rule):
    assert_none([violation for module in modules() for violation in rule(module)])


def test_every_allowance_for_a_broad_except_is_still_needed():
    assert_none(stale_allowances(ALLOWED_BROAD_EXCEPT, modules()))


def test_the_top_level_is_clean():
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert_none(top_level({path.split("/")[0] for path in listed.stdout.split("\0") if path}))


def test_setuptools_finds_every_package():
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    where = settings["tool"]["setuptools"]["packages"]["find"]["where"]
    assert_none(unfound_packages({m.path for m in modules() if m.in_house}, where))


# --- every rule can fail ----------------------------------------------------------------------

CORE = "broker/hightide_broker/core/leader.py"
STORAGE = "broker/hightide_broker/storage/log.py"
RUNTIME = "broker/hightide_broker/runtime/server.py"
CONFIG = "broker/hightide_broker/config.py"
NODE = "broker/hightide_broker/node.py"
WIRE = "client/hightide/wire.py"
SPARK = "client/hightide/spark/source.py"
MAIN = "cli/hightide_cli/main.py"
TEST = "tests/test_log.py"

PLANTED = (
    (arrows, "client/hightide/admin.py", "def f():\n    import hightide_cli.main", ":2:"),
    (arrows, "client/hightide/admin.py", "from hightide import spark", "hightide.spark"),
    (arrows, "client/hightide/__init__.py", "from .spark import session", "hightide.spark"),
    (arrows, SPARK, "from hightide_broker import node", "hightide_broker.node"),
    (arrows, NODE, "import importlib\nimportlib.import_module('hightide_cli')", ":2:"),
    (arrows, CORE, "from hightide.wire import Frame", "hightide.wire"),
    (arrows, CORE, "import hightide", "must not import hightide;"),
    (arrows, CORE, "from ..storage import log", "hightide_broker.storage.log"),
    (arrows, "broker/hightide_broker/core/__init__.py", "from .. import ports", ".ports"),
    (arrows, STORAGE, "from hightide_broker.core.leader import Leader", "core.leader"),
    (arrows, RUNTIME, "from hightide_broker.simulation import world", "simulation.world"),
    (arrows, RUNTIME, "import hightide_broker.node", "hightide_broker.node"),
    (arrows, CONFIG, "import msgspec", "msgspec"),
    (
        arrows,
        "broker/hightide_broker/ports.py",
        "from hightide.connection import connect",
        "hightide.connection",
    ),
    (arrows, "client/elsewhere/util.py", "", "no room"),
    (purity, CORE, "from time import monotonic", "take `now_ms` as an argument"),
    (purity, CORE, "def f():\n    import os.path", ":2:"),
    (purity, CORE, "import datetime as d\nd.datetime.now()", "take `now_ms`"),
    (purity, WIRE, "from datetime import datetime\ndatetime.utcnow()", "take `now_ms`"),
    (purity, WIRE, "import trio", "let the shell await"),
    (purity, STORAGE, "import os", "Disk port"),
    (lazy_imports, WIRE, "try:\n    import lz4.frame\nfinally:\n    pass", "`lz4`"),
    (lazy_imports, WIRE, "if TYPE_CHECKING:\n    pass\nelse:\n    import numpy", "`numpy`"),
    (lazy_imports, WIRE, "from hightide.arrow_rows import Rows", "`hightide.arrow_rows`"),
    (lazy_imports, MAIN, "from hightide import Admin", "`hightide`"),
    (lazy_imports, MAIN, "import rich.table", "`rich`"),
    (sizes, TEST, "x = 1\n" * 501, "501 lines"),
    (sizes, TEST, "async def f():\n" + "    x = 1\n" * 60, "61 lines in f"),
    (sizes, TEST, "# " + "é" * 99, "101 characters"),
    (docstring, "client/hightide/spark/__init__.py", "''' '''", "docstring"),
    (bans, TEST, "x = 1  # TO" + "DO: two", "TO" + "DO"),
    (bans, CORE, "'''FIX" + "ME'''", "FIX" + "ME"),
    (bans, CORE, "# XX" + "X", "issue"),
    (bans, TEST, "breakpoint()", "take it out"),
    (bans, CORE, "assert True", "cannot fail"),
    (bans, TEST, "assert (x == 1, 'x is one')", "cannot fail"),
    (bans, NODE, "print('up')", "only the command line talks"),
    (broad_excepts, NODE, "try:\n    f()\nexcept:\n    pass", ":3:"),
    (broad_excepts, NODE, "try:\n    f()\nexcept (OSError, Exception):\n    pass", ":3:"),
    (broad_excepts, NODE, "try:\n    f()\nexcept* BaseException:\n    pass", ":3:"),
    (broad_excepts, NODE, "with contextlib.suppress(Exception):\n    f()", ":1:"),
    (set_order, CORE, "for x in {1, 2}:\n    f(x)", "sort it"),
    (set_order, CORE, "y = [x for x in set(z)]", "sort it"),
    (set_order, CORE, "for i, x in enumerate(frozenset(z) - w):\n    f(x)", "sort it"),
)

INNOCENT = (
    (arrows, "client/hightide/testing.py", "from hightide_broker.node import Broker"),
    (arrows, "client/pyspark_hightide/__init__.py", "from hightide.spark.source import Source"),
    (arrows, SPARK, "from . import offsets\nfrom hightide.spark import sink\nimport pyspark"),
    (arrows, CORE, "from .peer import Peer\nfrom hightide.errors import Refused\nimport heapq"),
    (arrows, STORAGE, "from hightide import bins\nfrom hightide_broker.ports import Disk"),
    (arrows, CONFIG, "import tomllib\nfrom hightide.errors import ConfigError"),
    (arrows, NODE, "from hightide_broker.simulation import world\nimport hightide.tcp, trio"),
    (purity, CORE, "from datetime import timedelta\nfrom .errors import time\nclock.now()"),
    (purity, STORAGE, "import struct, logging"),
    (lazy_imports, WIRE, "def f():\n    import numpy\nif TYPE_CHECKING:\n    import pyarrow"),
    (lazy_imports, MAIN, "import click, sys\nfrom hightide_cli import topics"),
    (lazy_imports, "cli/hightide_cli/topics.py", "import rich"),
    (sizes, TEST, "x = 1\n" * 438 + "@a\n@b\ndef f():\n" + "    x = 1\n" * 58 + "# " + "é" * 98),
    (docstring, CORE, "'''A room.'''"),
    (bans, TEST, "XXXL = 1\nassert x, 'x'\nassert False, 'never'"),
    (bans, MAIN, "print('up')"),
    (broad_excepts, NODE, "try:\n    f()\nexcept (OSError, ValueError):\n    pass"),
    (set_order, CORE, "for x in sorted({1, 2}):\n    f(x in {1})"),
    (set_order, STORAGE, "for x in {1, 2}:\n    f(x)"),
)


@pytest.mark.parametrize(("rule", "path", "source", "words"), PLANTED)
def test_a_planted_violation_is_found(rule, path, source, words):
    (violation,) = rule(parse(path, source))
    assert violation.startswith(f"{path}:")
    assert words in violation


@pytest.mark.parametrize(("rule", "path", "source"), INNOCENT)
def test_what_the_rule_allows_is_left_alone(rule, path, source):
    assert rule(parse(path, source)) == []


def test_every_rule_has_a_planted_violation_and_an_innocent_neighbour():
    assert {case[0] for case in PLANTED} == {case[0] for case in INNOCENT} == set(RULES)


def test_a_listed_file_may_catch_everything_and_an_idle_listing_is_found():
    catching = parse(NODE, "try:\n    f()\nexcept Exception:\n    pass")
    assert broad_excepts(catching, allowed={NODE: "the process ends here"}) == []
    (idle,) = stale_allowances({NODE: "", MAIN: ""}, [catching])
    assert idle.startswith(MAIN)


def test_a_stranger_and_a_gap_at_the_top_are_found():
    assert top_level(TOP_LEVEL | {".github"}) == []
    stranger, gap = top_level(TOP_LEVEL - {"deploy"} | {"setup.py"})
    assert stranger.startswith("setup.py: does not")
    assert gap.startswith("deploy: is missing")


def test_a_folder_that_setuptools_would_not_find_is_found():
    whole = {"cli/a/__init__.py", "cli/a/b/__init__.py", "cli/a/b/c.py"}
    assert unfound_packages(whole, ["cli"]) == []
    assert unfound_packages(whole - {"cli/a/__init__.py"}, ["cli"]) == ["cli/a: has no __init__.py"]
    assert "`where`" in unfound_packages(whole, ["client"])[0]
