"""simulation: a disk, and later a whole world, that can fail on demand and by seed."""
