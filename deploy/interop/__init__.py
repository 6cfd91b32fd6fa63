"""Programs of others against a cluster of hightide, and a page of what came out."""
