"""hightide.net: connections, and what a client knows of the cluster. See README.md beside it."""
