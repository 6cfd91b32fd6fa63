"""The rules about secrets, and about what settings may lead to, held on the syntax tree.

No test lives here. A rule is a function from a module to its violations, as in `house_rules.py`.
"""

import ast
import re

from house_rules import import_base, last_name, nearest

SECRET = re.compile(
    r"(password|passwd|salted|proof|signature|nonce|secret|(stored|server|client)_key)s?$"
)
"""How names of what nobody may guess byte by byte end."""
LOGIN = (
    "hightide.net.login",
    "hightide.admin.passwords",
    "hightide_broker.core.cluster.users",
    "hightide_broker.runtime.server.login",
    "hightide_broker.secure_local",
)
MADE = {"digest", "hexdigest", "pbkdf2_hmac", "get_client_final", "get_server_final"}
"""What these return there is as secret."""
CHANGING = {"encode", "decode", "strip", "rstrip", "hex", "lower"}
EQUALITY = ast.Eq | ast.NotEq | ast.In | ast.NotIn

# {module: what it does with what it is given}
OPENERS = {
    "urllib.request": "opens URLs",
    "urllib.robotparser": "opens URLs",
    "http": "opens URLs",
    "ftplib": "opens URLs",
    "xmlrpc": "opens URLs",
    "smtplib": "opens connections",
    "webbrowser": "opens URLs",
    "requests": "opens URLs",
    "httpx": "opens URLs",
    "aiohttp": "opens URLs",
    "urllib3": "opens URLs",
    "fsspec": "opens URLs",
    "jsonschema": "follows references",
    "pickle": "runs what it reads",
    "dill": "runs what it reads",
    "cloudpickle": "runs what it reads",
    "marshal": "runs what it reads",
    "shelve": "runs what it reads",
    "yaml": "makes objects of what it reads",
    "jsonpickle": "makes objects of what it reads",
    "logging.config": "imports what it reads",
    "subprocess": "starts programs",
    "ctypes": "loads libraries",
}
IMPORTERS = {
    "import_module",
    "__import__",
    "find_spec",
    "resolve_name",
    "run_module",
    "run_path",
    "spec_from_file_location",
    "entry_points",
}
"""Harmless where the name that is imported stands there."""
RUNNERS = {"eval", "exec", "compile"}
SHELLS = {"os.system", "os.popen", "os.execv", "os.execvp", "os.spawnv", "os.posix_spawn"}

# {path: {what: reason}}; by none of them a setting says what is opened.
ALLOWED = {
    "client/hightide/__init__.py": {"import_module": "this package's own modules, by its table"},
    "client/hightide/spark/__init__.py": {"import_module": "its own modules, by its table"},
    "cli/hightide_cli/main.py": {"import_module": "this package's own modules, by its table"},
    "client/hightide/java.py": {"subprocess": "asks a Java that was found for its version"},
    "client/hightide/spark/endings.py": {"subprocess": "notes what pyspark starts"},
    "broker/hightide_broker/runtime/metrics/http.py": {"http": "what statuses are called"},
    "cli/hightide_cli/bench/console.py": {"http": "asks the console that it started itself"},
    "cli/hightide_cli/metrics.py": {"http": "asks a node of this machine, by what that wrote down"},
    "cli/hightide_cli/console_process.py": {"subprocess": "starts a console, by this very Python"},
    "cli/hightide_cli/children.py": {"subprocess": "starts nodes, by this very Python"},
    "cli/hightide_cli/settling.py": {"ctypes": "calls the C library that is loaded already"},
}


def comparisons(module):
    """Secrets are compared by `hmac.compare_digest`, or not at all (CVE-2021-38153)."""
    is_login = bool(nearest(module.name, LOGIN))
    return [
        module.violation(node.lineno, f"`{name}` is compared: hmac.compare_digest takes as long")
        for node in (module.of(ast.Compare) if module.in_house else ())
        if any(isinstance(op, EQUALITY) for op in node.ops)
        for name in secrets_among([node.left, *node.comparators], is_login=is_login)
    ]


def secrets_among(sides, *, is_login):
    """The names of secrets among what is compared; whether one is empty is no secret."""
    if any(isinstance(side, ast.Constant) and not side.value for side in sides):
        return
    for side in sides:
        for part in side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side]:
            name = name_of(part)
            if SECRET.search(name) or (is_login and name in MADE):
                yield name


def name_of(part):
    """What a value is called: by its variable, its field, its key, or the function it is from."""
    match part:
        case ast.Await(value=value) | ast.Starred(value=value) | ast.NamedExpr(target=value):
            return name_of(value)
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
        case ast.Subscript(value=value):
            return name_of(value)
        case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in CHANGING:
            return name_of(value)
        case ast.Call(func=func):
            return last_name(func) or ""
    return last_name(part) or ""


def openings(module, allowed=ALLOWED):
    """No value of a setting is opened as a URL, imported, run, or made an object of
    (CVE-2025-27817 to 27819)."""
    known = allowed.get(module.path, {})
    return [
        module.violation(line, f"`{what}` {does}: no setting may say what; see ALLOWED")
        for line, what, does in (uses(module) if module.in_house else ())
        if what not in known
    ]


def uses(module):
    """(line, what, what it does) of all that opens, imports or runs something."""
    of_constants = {
        id(node.func)
        for node in module.of(ast.Call)
        if node.args and isinstance(node.args[0], ast.Constant)
    }
    for node in module.of(ast.Import, ast.ImportFrom, ast.Name, ast.Attribute):
        match node:
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                for each in names:
                    if found := nearest(import_base(module, node) + each.name, OPENERS):
                        yield node.lineno, found, OPENERS[found]
                    if each.asname and each.name in IMPORTERS | RUNNERS:
                        yield node.lineno, each.name, "imports, by another name"
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in IMPORTERS:
                if id(node) not in of_constants:
                    yield node.lineno, name, "imports"
            case ast.Name(id=name) if name in RUNNERS:
                yield node.lineno, name, "runs text"
            case ast.Attribute() if (name := ast.unparse(node)) in SHELLS:
                yield node.lineno, name, "starts programs"


def stale(known, allowed=ALLOWED):
    """Allowances that nothing needs."""
    used = {
        module.path: {what for _, what, _ in uses(module)}
        for module in known
        if module.path in allowed
    }
    return [
        f"{path}: has no `{what}`: take it out of ALLOWED"
        for path, whats in allowed.items()
        for what in whats
        if what not in used.get(path, ())
    ]
