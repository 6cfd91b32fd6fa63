"""
.. include:: first_cluster.md
"""
