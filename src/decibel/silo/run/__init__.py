"""The run of one site: the engine, its network, checkpoints, privacy, and connections."""
