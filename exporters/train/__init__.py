"""Train the bottleneck, the exit and the tail."""
