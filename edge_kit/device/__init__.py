"""The device: its configuration, its loop, and where results go."""
