"""From a reading to a voltage: state estimator, observation, policy, and the supervisor that has the last word."""
