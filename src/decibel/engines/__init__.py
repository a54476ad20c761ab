"""Where nodes run: the compiled chunk, and engines that run it on one device, a cluster, or between organisations."""
