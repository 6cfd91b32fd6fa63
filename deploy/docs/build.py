"""Write the guide and the reference as static pages: `python build.py DIRECTORY`."""

from __future__ import annotations

import importlib
import sys
import warnings
from inspect import isfunction
from pathlib import Path

import pdoc
import pdoc.doc
import pdoc.render

PACKAGES = ["hightide", "hightide.blocking", "hightide.testing", "hightide.spark"]


def build(target: Path) -> None:
    """Raises a warning as an error: what is documented must be there."""
    sys.path.insert(0, str(Path(__file__).parent))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # The arguments of options structs, and of clients, name types of the module of their base.
        warnings.filterwarnings("ignore", "Error parsing type annotation .*__init__")
        for name in PACKAGES:
            _load(name)
        pdoc.render.configure(show_source=False, search=True)
        others = [name for name in PACKAGES if name != "hightide.blocking"]  # one of its names
        pdoc.pdoc("guide", *others, output_directory=target)


def _load(name: str) -> None:
    """Import what a package imports only when it is used: pdoc looks for what is there."""
    package = importlib.import_module(name)
    for each in package.__all__:
        vars(package)[each] = getattr(package, each)
        if isinstance(vars(package)[each], type):
            _gather(vars(package)[each])


def _gather(shown: type) -> None:
    """Have a class itself what it has from others of the house: pdoc would leave out what comes
    from one that has no page."""
    for base in shown.__mro__[1:]:
        if base.__module__.startswith("hightide."):
            for name, member in vars(base).items():
                if isfunction(member) and not name.startswith("_") and name not in vars(shown):
                    setattr(shown, name, member)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
