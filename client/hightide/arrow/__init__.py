"""hightide.arrow: records from and to Arrow, without Python per record. See README.md beside it."""
