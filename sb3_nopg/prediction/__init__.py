"""What a policy is predicted to do, before anything moves: trajectories through models of the system, a judge of policies."""
