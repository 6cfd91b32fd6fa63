"""core/groups: consumer groups: who is in them, who reads what, what was committed.

Pure. See README.md beside it.
"""
