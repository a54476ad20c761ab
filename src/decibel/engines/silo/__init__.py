"""Silo: one process per organisation, next to its own data; neighbours talk directly, and nobody uninvited gets in."""
