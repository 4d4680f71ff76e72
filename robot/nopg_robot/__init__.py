"""Rig drivers and deployment for a Quanser cart-pole, without torch: what runs on the PC beside the rig."""
