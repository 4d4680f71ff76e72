"""A run on a rig, from connecting to the summary: its phases, the control loop, the guard beside it, what a person sees."""
