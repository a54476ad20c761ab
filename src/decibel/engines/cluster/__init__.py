"""Nodes spread over the devices and hosts of one owner."""
