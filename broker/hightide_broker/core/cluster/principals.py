"""Who somebody is called by a certificate: its common name, or what rules make of the whole name.

A rule is tried on the distinguished name, most specific part first, as RFC 2253 writes it; the
first whose pattern matches all of it decides, and where none does nobody comes in. Source: KIP-371.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hightide.protocol.errors import UsageError

Parts = Sequence[tuple[str, str]]
"""The parts of a subject, in the certificate's order: kind and value."""
_SHORT = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_ESCAPED = re.compile(r'([,+"\\<>;=])')
_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
_BACK = re.compile(r"\$(\d)")


class Rule(NamedTuple):
    """`RULE:pattern/replacement/` with `L` or `U` for a case; `DEFAULT` keeps the name."""

    pattern: re.Pattern[str]
    replacement: str
    case: str = ""

    def apply(self, name: str) -> str | None:
        """What it makes of a name; None where it does not match."""
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        groups = (found[0], *found.groups(default=""))

        def group(back: re.Match[str]) -> str:
            number = int(back[1])
            return groups[number] if number < len(groups) else back[0]

        made = _BACK.sub(group, self.replacement)
        return {"L": made.lower(), "U": made.upper()}.get(self.case, made)


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Rules with commas between them; raises `UsageError`."""
    found, at = [], 0
    while at < len(text):
        match = _RULE.match(text, at)
        if match is None:
            raise UsageError(
                f"{text[at : at + 80]!r} is no rule, expected DEFAULT, or "
                f"RULE:pattern/replacement/ with L, U or nothing behind it"
            )
        at = match.end()
        default, pattern, replacement, case = match.groups()
        try:
            compiled = re.compile(r"(.*)" if default else pattern.replace(r"\/", "/"), re.DOTALL)
        except re.error as error:
            raise UsageError(f"{pattern!r} is no pattern: {error}") from error
        found.append(Rule(compiled, "$1" if default else replacement, case or ""))
    return tuple(found)


def distinguished_name(parts: Parts) -> str:
    """A subject as RFC 2253 writes it."""
    return ",".join(
        f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in reversed(parts)
    )


def _escaped(value: str) -> str:
    text = _ESCAPED.sub(r"\\\1", value)
    if text[:1] in ("#", " "):
        text = "\\" + text
    return text[:-1] + "\\ " if value.endswith(" ") and len(value) > 1 else text


def name_by(rules: Iterable[Rule], parts: Parts) -> str | None:
    """What rules make of a subject; None: none of them matches, or nothing is left of it."""
    name = distinguished_name(parts)
    for rule in rules:
        if (made := rule.apply(name)) is not None:
            return made or None
    return None
