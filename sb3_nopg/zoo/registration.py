"""Make our algorithms, environments and search spaces known to rl_zoo3."""

import rl_zoo3.train
from rl_zoo3.hyperparams_opt import HYPERPARAMS_CONVERTER, HYPERPARAMS_SAMPLER
from rl_zoo3.utils import ALGOS

import nopg_envs
from sb3_nopg.training.fixed_data_ddpg import FixedDataDDPG, FixedDataTD3
from sb3_nopg.zoo import search_space
from sb3_nopg.zoo.experiment import OfflineExperimentManager
from sb3_nopg.zoo.playable import PlayableNOPG, PlayableNOPGD, PlayableNOPGS


def register() -> None:
    """
    Add to rl_zoo3's tables, which all of its scripts share, and name our experiment manager as the one that ``train`` makes.
    Doing it twice changes nothing.
    """
    nopg_envs.register_envs()
    ALGOS.update(nopg=PlayableNOPG, nopg_d=PlayableNOPGD, nopg_s=PlayableNOPGS, ddpg=FixedDataDDPG, td3=FixedDataTD3)
    ours = ("nopg", "nopg_d", "nopg_s")
    HYPERPARAMS_SAMPLER.update(dict.fromkeys(ours, search_space.sample))
    HYPERPARAMS_CONVERTER.update(dict.fromkeys(ours, search_space.convert))  # type: ignore[arg-type]
    rl_zoo3.train.ExperimentManager = OfflineExperimentManager  # type: ignore[misc]
