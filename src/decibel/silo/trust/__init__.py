"""Whom a site trusts: keys, certificates, what the authority has signed, and how many members may collude."""
