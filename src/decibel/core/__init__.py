"""What everything stands on: stacked vectors, counted costs, random keys, files that are written atomically."""
