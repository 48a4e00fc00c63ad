"""The broker that demonstrations and development start."""
