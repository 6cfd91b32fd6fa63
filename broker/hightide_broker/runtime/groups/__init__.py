"""runtime/groups: the coordinators of consumer groups. See README.md beside it."""
