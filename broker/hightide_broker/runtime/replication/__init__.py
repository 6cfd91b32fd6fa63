"""runtime/replication: the replicas of this broker. See README.md beside it."""
