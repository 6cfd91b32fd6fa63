"""core/cluster: replicated facts, their image, and what the controller decides.

Pure. See README.md beside it.
"""
