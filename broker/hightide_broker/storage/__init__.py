"""storage: logs, indexes and checkpoints over the Disk port: synchronous, no tasks."""
