"""
.. include:: clients.md
"""
