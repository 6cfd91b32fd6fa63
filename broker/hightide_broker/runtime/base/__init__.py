"""runtime/base: what every room of the runtime stands on. See README.md beside it."""
