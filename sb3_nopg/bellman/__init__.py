"""The Bellman equation for one policy after another, on samples or on nodes, its solution, and the policy gradient."""
