"""Numbers in sentences."""

from __future__ import annotations


def counted(count: float, one: str, many: str = "") -> str:
    """How many of something: `1 record`, `0 records`, `2 entries`. `many` is said of all but one,
    if that is more than a letter: `1 row was read`, `2 rows were read`."""
    if count == 1:
        return f"1 {one}"
    if many:
        return f"{count} {many}"
    if one.endswith("y") and one[-2] not in "aeiou":
        return f"{count} {one[:-1]}ies"
    return f"{count} {one}{'es' if one.endswith(('ch', 'sh', 's', 'x')) else 's'}"
