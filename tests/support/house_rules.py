"""The house rules: which room may look into which, what is pure, how large a file may be.

No test lives here. A rule is a function from a module to its violations. Limits go down.
"""

import ast
import gc
import re
import sys
from collections import defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
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


PURE_WIRE = (
    "errors codecs records columns rows row_spans messages controller_messages group_messages "
    "node_messages quorum_messages access_messages login_messages quota_messages topic_partition "
    "words"
)
# Which others each room of the client looks into.
CLIENT_ROOMS = {
    "protocol": "",
    "net": "protocol",
    "arrow": "protocol",
    "produce": "protocol net arrow",
    "consume": "protocol net arrow",
    "admin": "protocol net consume",
    "blocking": "protocol net produce consume admin",
    "testing": "protocol net blocking",
    "spark": "protocol net arrow produce java",
}
# From the ground up: a room looks into those before it.
CORE_ROOMS = "quorum cluster replication groups"
RUNTIME_ROOMS = "base quorum cluster replication groups server metrics"
UNDER_RUNTIME = (
    "hightide",
    *these("hightide_broker", "storage trace ports config config_keys"),
)
EVENTS = ("hightide_broker.trace.events",)


def floors(package, rooms, below, beside=()):
    """A row for each room of a package whose rooms stand on each other, and on the rooms of the
    packages `beside` that have the same names."""
    names, rows = rooms.split(), {package: Room(below)}
    for at, name in enumerate(names, 1):
        on = [room for each in (package, *beside) for room in these(each, " ".join(names[:at]))]
        rows[f"{package}.{name}"] = Room((*on, *below))
    return rows


# The longest name that fits a module is its room.
CONFIG_KEYS = these("hightide_broker.core.cluster", "config_key topic_keys")
CONFIG_OF_TOPICS = ("hightide_broker.core.cluster.topic_config", *CONFIG_KEYS)
ARROWS = {
    "hightide": Room(("hightide",), refused=("hightide.spark",)),
    **{
        f"hightide.{name}": Room(these("hightide", f"{name} {on}"))
        for name, on in CLIENT_ROOMS.items()
    },
    "pyspark_hightide": Room(("pyspark_hightide", "hightide")),
    "hightide_broker": Room(("hightide_broker", "hightide")),
    **floors("hightide_broker.core", CORE_ROOMS, these("hightide.protocol", PURE_WIRE) + EVENTS),
    "hightide_broker.trace": Room(
        (*these("hightide_broker", "trace ports"), "hightide.protocol.words")
    ),
    "hightide_broker.storage": Room(
        these("hightide_broker", "storage ports")
        + these("hightide.protocol", "errors codecs records columns rows bins topic_partition")
        + ("hightide.net.ports",)
    ),
    **floors(
        "hightide_broker.runtime", RUNTIME_ROOMS, UNDER_RUNTIME, beside=["hightide_broker.core"]
    ),
    # Whatever comes in by it goes on as a request that a client of ours would send.
    "hightide_broker.kafka": Room(
        (
            "hightide.protocol",
            "hightide.net",
            *these("hightide_broker", "kafka ports config_keys core.cluster core.quorum storage"),
            *these("hightide_broker.runtime", "base server"),
        )
    ),
    "hightide_broker.config": Room(
        (
            *these("hightide.protocol", "errors hosts"),
            "hightide_broker.config_keys",
            *CONFIG_OF_TOPICS,
        ),
        stdlib_only=True,
    ),
    "hightide_broker.config_keys": Room(CONFIG_KEYS, stdlib_only=True),
    "hightide_broker.ports": Room(these("hightide", "net.ports protocol.records protocol.errors")),
    "hightide_cli": Room(
        ("hightide_cli", "hightide_console", "hightide_broker", "hightide", "pyspark_hightide")
    ),
    "hightide_console": Room(
        (
            "hightide_console",
            "hightide_broker.trace",
            "hightide_broker.simulation.lab_scenarios",
            "hightide",
        )
    ),
}
# A cluster to test with is made of brokers. What the quorum writes are the records of the metadata,
# of which the voters are one; and who is asked has to prove that it is the node that is meant.
ARROW_EXCEPTIONS = {
    "hightide.testing": ("hightide_broker",),
    "hightide_broker.runtime.quorum.batches": ("hightide_broker.core.cluster.changes",),
    "hightide_broker.runtime.quorum.driver": ("hightide_broker.core.cluster.changes",),
    "hightide_broker.runtime.quorum.metadata_log": ("hightide_broker.core.cluster.changes",),
    "hightide_broker.runtime.quorum.peers": ("hightide_broker.core.cluster.senders",),
}
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
PURE_CLIENT = (
    "protocol arrow.to_arrow produce.accumulator produce.partitioner consume.subscription "
    "consume.assignors consume.selection net.metadata net.retries net.any_broker"
)
PURE = {
    **{module: REPLACEMENTS.keys() for module in these("hightide", PURE_CLIENT)},
    "hightide_broker.core": REPLACEMENTS.keys(),
    **{
        module: REPLACEMENTS.keys()
        for module in these("hightide_broker.kafka", "fields reading writing codec tables")
    },
    "hightide_broker.trace": REPLACEMENTS.keys() - {"logging"},
    "hightide_broker.storage": REPLACEMENTS.keys() - {"logging", "asyncio", "subprocess"},
}
CLOCK_READS = {*these("datetime.datetime", "now utcnow today"), "datetime.date.today"}

MAY_BE_HEAVY = ("hightide.spark", "hightide.arrow.from_arrow")
HEAVY = ("pyarrow", "numpy", "pyspark", "lz4", "zstandard", "cramjam", *MAY_BE_HEAVY)
LIGHT_MAIN = {"cli/hightide_cli/main.py": {"hightide_cli", "click", *sys.stdlib_module_names}}

# {path: reason}; only the edge of a nursery or of a process is a reason.
ALLOWED_BROAD_EXCEPT = {
    "broker/hightide_broker/node.py": "writes down what ends it, and raises on",
    "broker/hightide_broker/runtime/base/agenda.py": "carries a failure into the task that runs it",
    "broker/hightide_broker/runtime/base/syncer.py": "carries a failure into the task that runs it",
    "broker/hightide_broker/runtime/server/connection.py": "its edge: a bug ends that one alone",
    "broker/hightide_broker/runtime/server/listener.py": "the edge of who is not in yet",
    "cli/hightide_cli/children.py": "the edge of a process that was forked",
    "cli/hightide_cli/main.py": "the process's edge",
    "client/hightide/net/background.py": "carries the block's exception around its nursery",
    "client/hightide/produce/sender.py": "carries an exception into the background",
    "client/hightide/blocking/producer.py": "carries an exception to the caller's thread",
    "client/hightide/blocking/portal.py": "carries an exception to the caller's thread",
    "client/hightide/consume/consumer.py": "closes what it opened, and raises on",
    "client/hightide/consume/rebalance.py": "carries what a listener raises to the caller",
}
CATCH_ALLS = {"Exception", "BaseException"}

LEFTOVERS = re.compile(r"\b(TO[D]O|FIX[M]E|X[X]X)\b")
FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef


class Module(NamedTuple):
    """One file: where it lies from the top of the repository, and what it says; `nodes` are all of
    its tree by their kind, walked once for all rules: a rule is about some kinds, and a million
    nodes are of others."""

    path: str
    source: str
    tree: ast.Module
    nodes: dict[type[ast.AST], list[ast.AST]]

    def of(self, *kinds):
        return [node for kind in kinds for node in self.nodes.get(kind, ())]

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
    tree = ast.parse(source, filename=path)
    nodes = defaultdict(list)
    left = [tree]
    for node in left:
        nodes[type(node)].append(node)
        for value in vars(node).values():
            if isinstance(value, list):
                left += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                left.append(value)
    return Module(path, source, tree, nodes)


@cache
def modules():
    folders = [REPOSITORY / folder for folder in (*HOUSE, "tests")]
    files = sorted(file for folder in folders for file in folder.rglob("[!.]*.py"))
    paths = [file.relative_to(REPOSITORY).as_posix() for file in files]
    # A million nodes that stay: none is garbage while they are made, nor later.
    gc.disable()
    try:
        return [parse(path, (REPOSITORY / path).read_text(encoding="utf-8")) for path in paths]
    finally:
        gc.freeze()
        gc.enable()


def nearest(name, table):
    """The longest key of `table` that `name` lies in, or None."""
    while name and name not in table:
        name = name.rpartition(".")[0]
    return name or None


def imports(module, nodes=None):
    """(line, dotted target, name it gets) of each import; `from a import b` counts as `a.b`."""
    kinds = ast.Import, ast.ImportFrom, ast.Call
    for node in module.of(*kinds) if nodes is None else nodes:
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


def idle_exceptions(known):
    """Exceptions from the arrows that nobody needs any more."""
    needed = {
        (name, exception)
        for module in known
        if (name := nearest(module.name, ARROW_EXCEPTIONS)) is not None
        for _, target, _ in imports(module)
        if (exception := nearest(target, ARROW_EXCEPTIONS[name])) is not None
    }
    listed = {(name, each) for name, some in ARROW_EXCEPTIONS.items() for each in some}
    return [
        f"{name}: does not look into {each}: strike it off"
        for name, each in sorted(listed - needed)
    ]


def circles(known):
    """A way by which modules of the house look into each other, for type checkers or late, too."""
    known = {module.name.removesuffix(".__init__"): module for module in known if module.in_house}
    looks_into = {
        name: {nearest(target, known) for _, target, _ in imports(module)} - {name, None}
        for name, module in known.items()
    }
    try:
        TopologicalSorter(looks_into).prepare()
    except CycleError as error:
        _, way = error.args
        return [known[way[0]].violation(1, f"a circle: {' <- '.join(way)}")]
    return []


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
    for node in module.of(ast.Attribute):
        head, _, rest = ast.unparse(node).partition(".")
        if f"{known_as.get(head, head)}.{rest}" in CLOCK_READS:
            yield node.lineno


def lazy_imports(module):
    """Heavy libraries wait until they are needed, and the command line's first file stays light."""
    client = nearest(module.name, ["hightide"]) and not nearest(module.name, MAY_BE_HEAVY)
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
        for node in module.of(*FUNCTIONS)
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
    may_print = not module.in_house or nearest(module.name, ["hightide_cli"])
    for node in module.of(ast.Name, ast.Assert):
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
    return [module.violation(line, why) for line in sorted(catch_alls(module))]


def catch_alls(module):
    for node in module.of(ast.ExceptHandler, ast.Call):
        caught = []
        if isinstance(node, ast.ExceptHandler):
            caught = getattr(node.type, "elts", [node.type])
        elif last_name(node.func) == "suppress":
            caught = node.args
        if any(each is None or last_name(each) in CATCH_ALLS for each in caught):
            yield node.lineno


def stale_allowances(allowed, known):
    catching = {each.path for each in known if each.path in allowed and any(catch_alls(each))}
    idle = sorted(allowed.keys() - catching)
    return [f"{path}: catches nothing broad: strike it off" for path in idle]


def set_order(module):
    if not nearest(module.name, ["hightide_broker.core"]):
        return []
    return [
        module.violation(node.iter.lineno, "the order of a set is chance: sort it")
        for node in module.of(ast.For, ast.AsyncFor, ast.comprehension)
        if is_set(node.iter)
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


def unnamed_files(paths, page_of):
    """Files of a room that its README does not name; `page_of` gives a folder's README, or None."""
    return [
        f"{path}: is not in the README of its room"
        for path in sorted(paths)
        if (page := page_of(path.rpartition("/")[0])) is not None
        and (name := path.rpartition("/")[2]) != "__init__.py"
        and f"`{name}`" not in page
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
