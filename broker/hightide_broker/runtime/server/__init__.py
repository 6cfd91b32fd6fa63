"""runtime/server: the listener, and the handlers of requests. See README.md beside it."""
