"""What a policy is predicted to do, before anything moves: trajectories through models of the system, and a judge of policies."""
