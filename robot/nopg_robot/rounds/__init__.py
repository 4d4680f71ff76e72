"""Learning on a rig in rounds: tasks, the folder that learner and rig share, and the rig's half of a round."""
