"""Benchmark results as JSON, text, Markdown and HTML, and their comparison."""
