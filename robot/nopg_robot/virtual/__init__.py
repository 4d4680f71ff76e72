"""Rigs made of software that speak the real wire formats: a driver cannot tell the difference."""
