"""core/replication: replication of one partition: leader, follower, and what they refuse.

Pure. See README.md beside it.
"""
