"""What sites say to each other: frames and their limits, edges, the rendezvous, and the site that keeps step."""
