"""Stress before flight: a policy on many rigs that might be the one in the laboratory."""

from nopg_envs.stress.flights import stress_test
from nopg_envs.stress.outcome import Factor, Outcome, StressTest
from nopg_envs.stress.rigs import Rig, draw_rigs

__all__ = ["Factor", "Outcome", "Rig", "StressTest", "draw_rigs", "stress_test"]
