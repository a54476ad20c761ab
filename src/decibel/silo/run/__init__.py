"""A run of one site: the engine, its network, checkpoints, privacy, and connections.

A message goes from the compiled step (`_site_network`) by a Python callback (`_host_callback`) to the site
(`protocol/_lockstep_site`), to the edge of the neighbour (`protocol/_edge`), into its stream's queue
(`protocol/_send_queue`), and by gRPC to the neighbour (`_connections`). There a thread parses it (`protocol/_frames`)
and hands it to the site (`protocol/_site`), whose edge keeps it for the step.
"""
