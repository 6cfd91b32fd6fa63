"""
.. include:: operating.md
"""
