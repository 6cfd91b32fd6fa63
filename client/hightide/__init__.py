"""hightide: the client library."""
