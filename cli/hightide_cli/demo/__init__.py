"""`hightide demo`: the whole way on real data."""
