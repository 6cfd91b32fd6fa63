"""hightide.consume: the consumer, alone or in a group. See README.md beside it."""
