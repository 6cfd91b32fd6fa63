"""hightide.arrow: records from and to Arrow, without Python per record. See README.md beside it."""

from hightide.protocol.errors import UsageError


def check_installed(what: str) -> None:
    """Raise `UsageError` where `what` cannot work, for want of a library."""
    try:
        import numpy  # noqa: F401 - whether it is there
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise UsageError(f"{what} needs {error.name}: pip install pyarrow numpy") from error
