"""runtime/cluster: the controller's term, and a broker's life as the controller sees it.

See README.md beside it.
"""
