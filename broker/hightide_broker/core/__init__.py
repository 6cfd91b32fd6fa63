"""core: the pure, deterministic rules: no clock, no disk, no network, no tasks."""
