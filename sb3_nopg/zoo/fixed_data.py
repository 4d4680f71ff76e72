"""DDPG and TD3 as the zoo knows them, on a fixed data set where the config names one."""

from sb3_nopg.baselines.offline_ddpg import FixedDataDDPG, FixedDataLearner, FixedDataTD3

__all__ = ["FixedDataDDPG", "FixedDataLearner", "FixedDataTD3"]
