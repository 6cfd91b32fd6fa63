"""Uses all free memory once, in a process of its own, before anything is measured.

A virtual machine gets most of its memory when it is used for the first time, page by page, which
may cost several times what a page costs later. Both systems write files, whose pages are new ones
as long as there are any, but one has its heap for ever and the other has not: on a machine that
has just begun, the comparison would be one of its host.
"""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

from compare.machine import fact

PART = 0.9
CHUNK_BYTES = 64 << 20
EVER_S = 1800.0


def touch_free_memory() -> None:
    """Have it done. Where less may be used than is free, the kernel ends it: that is enough."""
    subprocess.run([sys.executable, "-m", __name__], check=False, timeout=EVER_S)


def main() -> None:
    """Use so much of what is free, all at the same time."""
    Path("/proc/self/oom_score_adj").write_text("1000")  # it goes before anybody else
    one_of_each_page = bytes(CHUNK_BYTES // mmap.PAGESIZE)
    held = []
    free_bytes = int(fact("/proc/meminfo", "MemFree").split()[0]) << 10
    for _ in range(int(free_bytes * PART) // CHUNK_BYTES):
        chunk = mmap.mmap(-1, CHUNK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        chunk[:: mmap.PAGESIZE] = one_of_each_page
        held.append(chunk)


if __name__ == "__main__":
    main()
