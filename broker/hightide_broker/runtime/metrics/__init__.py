"""Numbers about a node, for those who watch it; see README.md."""
