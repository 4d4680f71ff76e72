"""Rig drivers and deployment for a Quanser cart-pole. Nothing is in here yet: see the CHANGELOG."""
