"""The report that a person reads before a policy moves anything."""
