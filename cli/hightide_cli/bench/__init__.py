"""`hightide bench`: what this machine does with hightide, measured."""
