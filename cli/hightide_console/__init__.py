"""A console to look at a cluster with: pages for people, kept fresh by what the cluster says."""
