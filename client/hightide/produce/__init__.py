"""hightide.produce: the producer. See README.md beside it."""
