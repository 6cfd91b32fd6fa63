"""What is said where nobody leads the metadata: what a command shows is then what was known last.

Brokers answer about the cluster by their own images, also where no majority of the controllers is
there; who only reads their answers would not notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hightide_cli.output import say

if TYPE_CHECKING:
    from hightide import Admin
    from hightide.admin.descriptions import (
        ClusterDescription,
        QuorumDescription,
        TopicDescription,
    )

NO_LEADER = -1
"""As brokers say that they know of no active controller."""
REMEDY = "start the controllers that are down"


def leaderless(who: str) -> str:
    """That no controller is active by what somebody knows, and what follows."""
    return (
        f"no controller is active, as far as {who} knows: until a majority of the controllers is "
        "there, nothing can be created, changed or deleted, and no partition gets another leader"
    )


def say_if_leaderless(cluster: ClusterDescription) -> None:
    """Say on stderr what it means, if nobody leads."""
    if cluster.controller == NO_LEADER:
        said = leaderless("the broker that was asked")
        say(f"{said}. What is shown is what it heard last (hightide quorum status: who votes)")


async def known_topics(admin: Admin) -> list[TopicDescription]:
    """All topics; says whether they are what was known last."""
    say_if_leaderless(await admin.describe_cluster())
    return await admin.list_topics()


async def known_quorum(admin: Admin) -> QuorumDescription:
    """The quorum as its leader sees it, or as a node knows it by itself."""
    return await admin.describe_quorum(even_without_leader=True)
