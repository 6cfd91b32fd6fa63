"""What happened to the replicas of a node, kept as it happens: events, a ring of files, a story."""
