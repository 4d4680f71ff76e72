"""Recordings of a real cart-pole beside the simulated one: reading them, predicting them, fitting the parameters to them."""
