"""One script in several processes."""
