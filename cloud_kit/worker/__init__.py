"""The worker: receive, decode, batch, infer, publish, acknowledge."""
