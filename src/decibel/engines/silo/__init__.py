"""Silo: one process per organisation, next to its own data; authenticated neighbours communicate directly."""
