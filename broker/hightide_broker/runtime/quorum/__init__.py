"""runtime/quorum: the quorum's driver: clock, disk and network around `core/quorum`.

See README.md beside it.
"""
