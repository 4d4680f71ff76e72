"""How a policy is trained on a model of the system: candidates, their stages, and which of them is kept."""
