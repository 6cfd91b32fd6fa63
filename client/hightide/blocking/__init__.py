"""The same three classes for code that has no event loop: scripts, notebooks, tests."""

from hightide.blocking.clients import Admin, Consumer, Delivery, Producer

__all__ = ["Producer", "Consumer", "Admin", "Delivery"]
