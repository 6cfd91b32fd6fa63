"""The same three classes for code that has no event loop: scripts, notebooks, tests.

One daemon thread runs trio for all blocking clients of a process; calls from other threads wait for
it. Names, options and errors are those of the async classes.
"""

from hightide.blocking.admin import Admin
from hightide.blocking.consumer import Consumer
from hightide.blocking.producer import ManyDeliveries, Producer
from hightide.blocking.runs import Delivery

__all__ = ["Producer", "Consumer", "Admin", "Delivery", "ManyDeliveries"]
