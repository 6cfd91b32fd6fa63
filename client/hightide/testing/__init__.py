"""Clusters in this process, for tests: `cluster` for trio, `BlockingCluster` for code without."""

from hightide.testing.clusters import BlockingCluster, TestCluster, cluster

__all__ = ["BlockingCluster", "TestCluster", "cluster"]
