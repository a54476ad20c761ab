"""Small faults planted in the source: do the default tests find them?

`faults.py` is the table, `reach.py` measures which tests run which lines, and `python -m planted` (from `tests`) plants
one fault at a time in a copy of the source and runs the tests that reach it. `found.json` says which test finds which
fault.
"""
