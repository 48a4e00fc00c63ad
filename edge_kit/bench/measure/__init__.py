"""Measure one configuration."""
