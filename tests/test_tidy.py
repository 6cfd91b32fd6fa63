"""The house rules, held on the syntax tree of every file; each is shown a planted violation."""

import subprocess
import tomllib

import pytest
from house_rules import (
    ALLOWED_BROAD_EXCEPT,
    ARROW_EXCEPTIONS,
    REPOSITORY,
    RULES,
    TOP_LEVEL,
    arrows,
    bans,
    broad_excepts,
    circles,
    docstring,
    idle_exceptions,
    lazy_imports,
    modules,
    parse,
    purity,
    set_order,
    sizes,
    stale_allowances,
    top_level,
    unfound_packages,
    unnamed_files,
)


def assert_none(violations):
    if violations:
        pytest.fail("\n".join(violations), pytrace=False)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_module_keeps_the_rule(rule):
    assert_none([violation for module in modules() for violation in rule(module)])


PAGES = {"cli/hightide_cli": "cli", "broker/hightide_broker": "broker", "client/hightide": "client"}
"""Where the page of a package's own files lies, if not beside them."""
ROOMS_WITHOUT_FILES = {
    "broker/hightide_broker/core",
    "broker/hightide_broker/runtime",
    "client/pyspark_hightide",
}


def test_every_exception_from_the_arrows_is_still_needed():
    assert_none(idle_exceptions(modules()))


def test_no_module_looks_into_one_that_looks_into_it():
    assert_none(circles(modules()))


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


def test_the_readme_of_each_room_names_its_files():
    def page_of(folder):
        page = REPOSITORY / PAGES.get(folder, folder) / "README.md"
        return page.read_text(encoding="utf-8") if page.exists() else None

    paths = {module.path for module in modules() if module.in_house}
    rooms = {path.rpartition("/")[0] for path in paths} - ROOMS_WITHOUT_FILES
    assert [room for room in sorted(rooms) if page_of(room) is None] == []
    assert_none(unnamed_files(paths, page_of))


# --- every rule can fail ----------------------------------------------------------------------

CORE = "broker/hightide_broker/core/replication/leader.py"
STORAGE = "broker/hightide_broker/storage/log.py"
RUNTIME = "broker/hightide_broker/runtime/server/connection.py"
WATERMARK = "broker/hightide_broker/runtime/base/watermark.py"
DRIVER = "broker/hightide_broker/runtime/quorum/driver.py"
REPLICA = "broker/hightide_broker/runtime/replication/replica.py"
CONFIG = "broker/hightide_broker/config.py"
NODE = "broker/hightide_broker/node.py"
OPENING = "broker/hightide_broker/opening.py"
WIRE = "client/hightide/protocol/wire.py"
SPARK = "client/hightide/spark/source.py"
MAIN = "cli/hightide_cli/main.py"
TEST = "tests/storage/test_log.py"

PLANTED = (
    (arrows, "client/hightide/admin/admin.py", "def f():\n    import hightide_cli.main", ":2:"),
    (arrows, "client/hightide/admin/admin.py", "from hightide import spark", "hightide.spark"),
    (arrows, "client/hightide/__init__.py", "from .spark import session", "hightide.spark"),
    (arrows, SPARK, "from hightide_broker import node", "hightide_broker.node"),
    (arrows, WIRE, "from hightide.net import tcp", "hightide.net.tcp"),
    (arrows, "client/hightide/produce/sender.py", "import hightide.consume.fetcher", "consume.f"),
    (arrows, NODE, "import importlib\nimportlib.import_module('hightide_cli')", ":2:"),
    (arrows, CORE, "from hightide.protocol.wire import Frame", "hightide.protocol.wire"),
    (arrows, CORE, "import hightide", "must not import hightide;"),
    (arrows, CORE, "from ...storage import log", "hightide_broker.storage.log"),
    (arrows, "broker/hightide_broker/core/__init__.py", "from .. import ports", ".ports"),
    (arrows, STORAGE, "from hightide_broker.core.groups.group import Group", "core.groups.group"),
    (arrows, CORE, "from hightide_broker.core.groups.group import Group", "core.groups.group"),
    (arrows, RUNTIME, "from hightide_broker.node import Node", "hightide_broker.node"),
    (arrows, WATERMARK, "import hightide_broker.runtime.quorum.driver", "runtime.quorum.driver"),
    (arrows, WATERMARK, "import hightide_broker.core.quorum.progress", "core.quorum.progress"),
    (arrows, DRIVER, "from hightide_broker.core.cluster.image import T", "core.cluster.image"),
    (arrows, REPLICA, "from hightide_broker.core.groups import text", "core.groups.text"),
    (arrows, RUNTIME, "from hightide_broker.simulation import world", "simulation.world"),
    (arrows, RUNTIME, "import hightide_broker.node", "hightide_broker.node"),
    (arrows, CONFIG, "import msgspec", "msgspec"),
    (
        arrows,
        "broker/hightide_broker/ports.py",
        "from hightide.net.connection import connect",
        "hightide.net.connection",
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
    (
        lazy_imports,
        WIRE,
        "from hightide.arrow.from_arrow import Rows",
        "`hightide.arrow.from_arrow`",
    ),
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
    (broad_excepts, OPENING, "try:\n    f()\nexcept:\n    pass", ":3:"),
    (broad_excepts, OPENING, "try:\n    f()\nexcept (OSError, Exception):\n    pass", ":3:"),
    (broad_excepts, OPENING, "try:\n    f()\nexcept* BaseException:\n    pass", ":3:"),
    (broad_excepts, OPENING, "with contextlib.suppress(Exception):\n    f()", ":1:"),
    (set_order, CORE, "for x in {1, 2}:\n    f(x)", "sort it"),
    (set_order, CORE, "y = [x for x in set(z)]", "sort it"),
    (set_order, CORE, "for i, x in enumerate(frozenset(z) - w):\n    f(x)", "sort it"),
)

INNOCENT = (
    (arrows, "client/hightide/testing/clusters.py", "from hightide_broker.node import Broker"),
    (arrows, "client/pyspark_hightide/__init__.py", "from hightide.spark.source import Source"),
    (arrows, "client/hightide/produce/sender.py", "import hightide.net.cluster, hightide.protocol"),
    (arrows, SPARK, "from . import offsets\nfrom hightide.spark import sink\nimport pyspark"),
    (
        arrows,
        CORE,
        "from .follower import Follower\nfrom hightide_broker.core.cluster import image",
    ),
    (arrows, RUNTIME, "from hightide_broker.runtime.groups.coordinator import Coordinator"),
    (arrows, RUNTIME, "from hightide_broker.core.groups.group import Group"),
    (arrows, DRIVER, "from hightide_broker.core.cluster.changes import SetVoters"),
    (arrows, REPLICA, "from hightide_broker.core.cluster import image"),
    (
        arrows,
        CORE,
        "from hightide.protocol.errors import Refused\nimport heapq",
    ),
    (arrows, STORAGE, "from hightide.protocol import bins\nfrom hightide_broker.ports import Disk"),
    (arrows, CONFIG, "import tomllib\nfrom hightide.protocol.errors import ConfigError"),
    (arrows, NODE, "from hightide_broker.simulation import world\nimport hightide.net.tcp, trio"),
    (purity, CORE, "from datetime import timedelta\nfrom .errors import time\nclock.now()"),
    (purity, STORAGE, "import struct, logging"),
    (lazy_imports, WIRE, "def f():\n    import numpy\nif TYPE_CHECKING:\n    import pyarrow"),
    (lazy_imports, MAIN, "import click, sys\nfrom hightide_cli import topics"),
    (lazy_imports, "cli/hightide_cli/topics.py", "import rich"),
    (sizes, TEST, "x = 1\n" * 438 + "@a\n@b\ndef f():\n" + "    x = 1\n" * 58 + "# " + "é" * 98),
    (docstring, CORE, "'''A room.'''"),
    (bans, TEST, "XXXL = 1\nassert x, 'x'\nassert False, 'never'"),
    (bans, MAIN, "print('up')"),
    (broad_excepts, OPENING, "try:\n    f()\nexcept (OSError, ValueError):\n    pass"),
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


def test_a_circle_is_found_although_one_half_is_for_type_checkers_and_the_other_late():
    one = parse("cli/a/one.py", "if TYPE_CHECKING:\n    from a.two import Two")
    two = parse("cli/a/two.py", "def f():\n    from a import one, three")
    assert circles([one, parse("cli/a/three.py", "import a.two")]) == []
    (violation,) = circles([one, two])
    assert {"a.one", "a.two"} <= {*violation.split()}


def test_an_exception_from_the_arrows_that_nobody_needs_is_found():
    driver = [module for module in modules() if module.path == DRIVER]
    idle = idle_exceptions(driver)
    assert len(idle) == len(ARROW_EXCEPTIONS) - 1
    assert not any("driver" in each for each in idle)


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


def test_a_file_that_the_page_of_its_room_does_not_name_is_found():
    pages = {"cli/a": "| `one.py` | it |"}
    paths = {"cli/a/one.py", "cli/a/two.py", "cli/a/__init__.py", "cli/b/three.py"}
    (unnamed,) = unnamed_files(paths, pages.get)
    assert unnamed.startswith("cli/a/two.py")


def test_a_folder_that_setuptools_would_not_find_is_found():
    whole = {"cli/a/__init__.py", "cli/a/b/__init__.py", "cli/a/b/c.py"}
    assert unfound_packages(whole, ["cli"]) == []
    assert unfound_packages(whole - {"cli/a/__init__.py"}, ["cli"]) == ["cli/a: has no __init__.py"]
    assert "`where`" in unfound_packages(whole, ["client"])[0]
