"""What a site trusts: keys, certificates, what the authority has signed, and how many members may collude."""

LARGEST_ORDER = 4096  # bytes of an order's text; here, so that reading it needs no cryptography
