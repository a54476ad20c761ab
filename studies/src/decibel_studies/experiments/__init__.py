"""The experiments of the papers and our own: one module for each, with the set-ups and tasks that they share."""
