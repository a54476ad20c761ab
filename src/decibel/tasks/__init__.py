"""Real problems on real data."""
