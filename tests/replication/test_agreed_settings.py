"""What decides about loss is the whole cluster's, whatever a node's own file says.

Goal: a leader reckons with the `min.insync.replicas` and the `flush` that the metadata has, or it
would commit what the controllers take for uncommitted. Method: broker 1, whose file differs, with
metadata by hand.
"""

from __future__ import annotations

import pytest
from leaderkit import ME, TWO, Here

from hightide_broker.core.cluster.changes import SetConfig
from hightide_broker.core.cluster.image import CLUSTER

OWN = {"min_insync_replicas": "1", "flush": "replicated"}


async def agreed(here: Here, **configs: str) -> None:
    kind, name = CLUSTER
    for key, value in configs.items():
        await here.apply(SetConfig(kind=kind, name=name, key=key.replace("_", "."), value=value))


def rules(here: Here) -> tuple[int, bool]:
    leader = here.replicas.get("jade", 0).leader
    assert leader is not None
    return leader.min_isr, leader.synced_counts


@pytest.mark.parametrize("is_there_before", [True, False])
async def test_the_metadata_counts_and_not_the_file(is_there_before: bool) -> None:
    here = Here(**OWN)
    if is_there_before:
        await here.create(isr=(ME, TWO))
        assert rules(here) == (1, False)
    await agreed(here, min_insync_replicas="2", flush="synced")
    if not is_there_before:
        await here.create(isr=(ME, TWO))
    await here.apply(SetConfig(kind="topic", name="jade", key="flush", value=None))
    assert rules(here) == (2, True)


async def test_what_a_topic_says_counts_before_what_the_cluster_does() -> None:
    here = Here(**OWN)
    await agreed(here, min_insync_replicas="2", flush="synced")
    await here.create(isr=(ME, TWO))
    for key, value in (("min.insync.replicas", "1"), ("flush", "replicated")):
        await here.apply(SetConfig(kind="topic", name="jade", key=key, value=value))
    assert rules(here) == (1, False)
