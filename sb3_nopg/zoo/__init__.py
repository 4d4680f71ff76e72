"""rl-baselines3-zoo with NOPG: ``python -m sb3_nopg.zoo train|enjoy|record|plot|optimize``, configs and data recipes."""
