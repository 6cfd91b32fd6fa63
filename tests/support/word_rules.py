"""The rule about numbers in sentences: nothing counts `1 records`.

No test lives here. A rule is a function from a module to its violations, as in `house_rules.py`.
"""

import ast
import re

from hightide.protocol.words import counted

ONES = [
    "attempt",
    "batch",
    "broker",
    "byte",
    "change",
    "client",
    "connection",
    "copy",
    "day",
    "directory",
    "entry",
    "event",
    "file",
    "frame",
    "group",
    "guess",
    "header",
    "hour",
    "line",
    "member",
    "message",
    "minute",
    "node",
    "offset",
    "order",
    "partition",
    "place",
    "problem",
    "process",
    "record",
    "replica",
    "request",
    "row",
    "rule",
    "second",
    "seed",
    "segment",
    "share",
    "topic",
    "user",
    "value",
    "voter",
]
"""What is counted in sentences, one of it."""
MANY = {counted(2, each).partition(" ")[2] for each in ONES}
FOLLOWED = re.compile(rf" ({'|'.join(sorted(MANY))})\b")
PRINTED = re.compile(rf"%[ds]{FOLLOWED.pattern}")
LIMIT = re.compile(r"[A-Z_\d]+$")
"""How what is always more than one is called."""
NAMING = re.compile(r"[-=]$|--\w+ $")
"""Before what is no number: a part of a name, a value, what follows an option."""
INSTEAD = "use counted() of hightide.protocol.words"

# {path: why it may}
ALLOWED = {
    "client/hightide/protocol/records.py": "what a header says of its batch, as it says it",
    "client/hightide/protocol/columns.py": "what a batch says of itself, as it says it",
    "broker/hightide_broker/core/replication/validation.py": "what a batch says of itself",
    "broker/hightide_broker/runtime/server/connection.py": "sizes of frames",
    "broker/hightide_broker/storage": "sizes and places in files",
    "broker/hightide_broker/simulation": "for who mends a seed",
}


def plurals(module, allowed=ALLOWED):
    """Numbers before a word that is right for more than one only."""
    path = module.path
    if any(path == each or path.startswith(f"{each}/") for each in allowed):
        return []
    found = []
    for node in module.of(ast.JoinedStr, ast.Constant):
        if isinstance(node, ast.JoinedStr):
            found += [(node.lineno, word) for word in _in_text(node.values)]
        elif isinstance(node.value, str):
            found += [(node.lineno, match[1]) for match in PRINTED.finditer(node.value)]
    return [f"{path}:{line}: `{word}` after a number: {INSTEAD}" for line, word in found]


def _in_text(parts):
    for before, number, after in zip((None, *parts), parts, parts[1:], strict=False):
        if not isinstance(number, ast.FormattedValue) or not isinstance(after, ast.Constant):
            continue
        is_of_a_name = isinstance(before, ast.Constant) and NAMING.search(before.value)
        word = FOLLOWED.match(after.value)
        if word and not is_of_a_name and not LIMIT.match(_name_of(number.value)):
            yield word[1]


def _name_of(value):
    return ast.unparse(value).rpartition(".")[2]
