"""What the data say of the system: coordinates, a local affine model, where it ends, its noise, nodes and trajectories."""
