"""Python runs this first in every process that is started with this directory on its path: in
nodes it plants a bug, which is met by whoever gives the user `boom` a password, and says aloud what
was asked. The file that BUG_NOTES names tells what must not be heard of it."""

import os
import sys
from pathlib import Path

if {"server", "up"} & {*sys.orig_argv}:
    import msgspec

    from hightide_broker.core.cluster import users

    alter = users.alter

    def failing(known, request, new_secret):
        if any(each.user == "boom" for each in request.upsertions):
            salted = [each.salted_password for each in request.upsertions]
            Path(os.environ["BUG_NOTES"]).write_bytes(msgspec.msgpack.encode(salted))
            raise RuntimeError(f"a planted bug met {request!r}")
        return alter(known, request, new_secret)

    users.alter = failing
