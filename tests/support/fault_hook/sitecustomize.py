"""Python runs this first in every process that is started with this directory on its path: nodes
then have a machine that goes wrong as files in the directory FAULTS say. Each is looked at whenever
it would matter: `slow-sync`, how many seconds a sync takes longer; `fail-sync`, a part of
the paths of files that cannot be synced; `free-bytes` and `total-bytes`, what is left of the disk
and how large it is, whatever is; `unheard`, the id of a broker whose heartbeats get lost."""

import errno
import os
import sys
import time
from pathlib import Path

FAULTS = os.environ.get("FAULTS", "")


def told(name):
    """What a file says; empty if it is not there."""
    try:
        return (Path(FAULTS) / name).read_text()
    except FileNotFoundError:
        return ""


if FAULTS and {"server", "up"} & {*sys.orig_argv}:
    from hightide.protocol.controller_messages import BrokerHeartbeatRequest
    from hightide.protocol.errors import ErrorCode, Refused
    from hightide_broker.runtime.cluster.controller_channel import ControllerChannel

    sync, look, ask = os.fdatasync, os.statvfs, ControllerChannel.ask

    def slow_sync(descriptor):
        time.sleep(float(told("slow-sync") or 0))
        part = told("fail-sync")
        if part and part in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, "Input/output error")
        sync(descriptor)

    def statvfs(path):
        found = look(path)
        if not (free := told("free-bytes")):
            return found
        size = os.statvfs_result(found)
        facts = [*size]
        facts[2] = int(told("total-bytes")) // size.f_frsize
        facts[4] = int(free) // size.f_frsize
        return os.statvfs_result(facts)

    async def unheard(self, request, **how):
        if isinstance(request, BrokerHeartbeatRequest) and told("unheard") == str(request.broker):
            raise Refused(ErrorCode.REQUEST_TIMED_OUT, "it got lost")
        return await ask(self, request, **how)

    os.fdatasync, os.statvfs, ControllerChannel.ask = slow_sync, statvfs, unheard
