"""runtime: thin trio shells around core and storage, one job each."""
