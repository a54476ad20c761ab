"""The problem: two losses, the nodes' data, and exact solutions to measure against."""
