"""Where experiments are run: arms, step sizes, fingerprints, the scheduler, processes and networks."""
