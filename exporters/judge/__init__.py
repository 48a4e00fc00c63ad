"""What the exported files answer, the thresholds, and the gates that they must pass."""
