"""Python runs this first in every process that is started with this directory on its path: nodes
then have a machine that goes wrong as files in the directory FAULTS say. Each is looked at whenever
it would matter: `slow-sync`, how many seconds a sync takes longer; `free-bytes`, what is left of
the disk, whatever is; `unheard`, the id of a broker whose heartbeats get lost."""

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


if FAULTS and "server" in sys.orig_argv:
    from hightide.protocol.controller_messages import BrokerHeartbeatRequest
    from hightide.protocol.errors import ErrorCode, Refused
    from hightide_broker.runtime.cluster.controller_channel import ControllerChannel

    sync, look, ask = os.fdatasync, os.statvfs, ControllerChannel.ask

    def slow_sync(descriptor):
        time.sleep(float(told("slow-sync") or 0))
        sync(descriptor)

    def statvfs(path):
        found = look(path)
        if not (free := told("free-bytes")):
            return found
        size = os.statvfs_result(found)
        facts = [*size]
        facts[4] = int(free) // size.f_frsize
        return os.statvfs_result(facts)

    async def unheard(self, request, **how):
        if isinstance(request, BrokerHeartbeatRequest) and told("unheard") == str(request.broker):
            raise Refused(ErrorCode.REQUEST_TIMED_OUT, "it got lost")
        return await ask(self, request, **how)

    os.fdatasync, os.statvfs, ControllerChannel.ask = slow_sync, statvfs, unheard
