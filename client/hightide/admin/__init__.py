"""hightide.admin: topics, settings, groups, brokers. See README.md beside it."""
