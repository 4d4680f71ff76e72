"""Policies as Stable-Baselines3 has them, and as a rig reads them."""
