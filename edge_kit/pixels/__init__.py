"""Frames as pixels: to the model's size, and as JPEG."""
