"""Shared foundations: stacked vectors, counted costs, random keys, files that are written atomically."""
