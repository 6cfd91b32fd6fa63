"""
.. include:: spark.md
.. include:: ../../SPARK.md
"""
