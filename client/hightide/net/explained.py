"""`help` of an options struct: what stands in the source below each field, which Python drops."""

from __future__ import annotations

import ast
from contextlib import suppress
from dataclasses import MISSING, fields
from inspect import getsource
from itertools import pairwise
from textwrap import dedent, fill, indent
from typing import Any, TypeVar

T = TypeVar("T")


class _Explained:
    """A class's docstring, with what stands below each of its fields; read when asked for."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __get__(self, _: object, owner: type[Any]) -> str:
        told, meanings = [], _meanings(owner)
        for field in fields(owner):
            default = "" if field.default is MISSING else f" = {field.default!r}"
            told.append(f"{field.name}: {field.type}{default}")
            meaning = meanings.get(field.name, "")
            told.append(indent(fill(" ".join(meaning.split()), 84), "    "))
        return "\n".join([self._text, "", *told])


def explained(options: type[T]) -> type[T]:
    """Have `help` of an options struct tell what each option means."""
    options.__doc__ = _Explained(options.__doc__ or "")  # type: ignore[assignment]
    return options


def _meanings(options: type) -> dict[str, str]:
    """What stands below each field, in the class or in one that it extends."""
    found: dict[str, str] = {}
    for one in reversed(options.__mro__[:-1]):
        with suppress(OSError):  # there is no source to read
            (body,) = ast.parse(dedent(getsource(one))).body
            assert isinstance(body, ast.ClassDef)
            for field, text in pairwise(body.body):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    found[ast.unparse(field.target)] = ast.literal_eval(text.value)
    return found
