"""What the chaos test's brokers keep their data on: file systems so small that they can be full.

No test lives here.
"""

import os
import subprocess
from contextlib import contextmanager, suppress

BALLAST = "ballast"


@contextmanager
def small_disks(directories, size):
    """Each directory is a file system of its own, of so many bytes (`256m`; empty: none is). It
    stays where the block fails. Raises `CalledProcessError` for anybody who is not root."""
    directories = directories if size else []
    for directory in directories:
        directory.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", directory]
        subprocess.run(command, check=True)
    yield
    for directory in directories:
        subprocess.run(["umount", directory], check=True)


def fill(directory):
    """No byte is left."""
    with (directory / BALLAST).open("wb") as file:
        while free := os.statvfs(directory).f_bavail * os.statvfs(directory).f_frsize:
            with suppress(OSError):  # somebody else was faster
                os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), free)
