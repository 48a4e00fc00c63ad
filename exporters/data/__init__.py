"""Labelled photos on disk, augmented views, cached features."""
