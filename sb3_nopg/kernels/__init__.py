"""Kernels on the samples: which samples matter to a state, and how much."""
