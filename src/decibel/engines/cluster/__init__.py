"""Nodes distributed over the devices and hosts of one owner."""
