"""What a device says of itself: counters, stages, state."""
