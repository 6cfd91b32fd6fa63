"""Lets Spark find `format("hightide")` without registering: it imports every `pyspark_*` module."""

from hightide.spark import HightideDataSource as DefaultSource

__all__ = ["DefaultSource"]
