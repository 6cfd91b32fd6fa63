"""core/quorum: the metadata quorum: Raft with pull replication, as a state machine.

Pure. See README.md beside it.
"""
