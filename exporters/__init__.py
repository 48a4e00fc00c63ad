"""Exporters: from a trained PyTorch classifier to a bundle. The only package that imports torch."""
