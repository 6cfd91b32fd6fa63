"""hightide.protocol: the wire, record batches, errors. See README.md beside it."""
