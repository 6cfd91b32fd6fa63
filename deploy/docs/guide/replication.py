"""
.. include:: replication.md
"""
