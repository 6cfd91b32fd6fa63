"""hightide.arrow: records from and to Arrow, without Python per record. See README.md beside it."""

from importlib.util import find_spec

from hightide.protocol.errors import UsageError

_NEEDED = "pyarrow", "numpy"


def check_installed(what: str) -> None:
    """Raise `UsageError` where `what` cannot work, for want of a library."""
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise UsageError(f"{what} needs more: pip install {' '.join(missing)}")
