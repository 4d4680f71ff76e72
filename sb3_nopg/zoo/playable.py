"""The algorithms as rl_zoo3 loads them to play."""

from typing import Any, TypeVar

import torch as th
from stable_baselines3.common.type_aliases import GymEnv

from sb3_nopg.nopg import NOPG, NOPGD, NOPGS

SelfPlayable = TypeVar("SelfPlayable", bound="PlayableNOPG")


class PlayableNOPG(NOPG):
    """NOPG, loaded also by somebody who puts zero in place of the saved learning rate, as rl_zoo3 does for all algorithms."""

    @classmethod
    def load(
        cls: type[SelfPlayable],
        path: Any,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        **keywords: Any,
    ) -> SelfPlayable:
        """
        :param path: of the model
        :param env: to go on with
        :param device: to load onto
        :param custom_objects: put in place of what was saved; a learning rate among them is ignored, for zero is no learning
            rate of ours and rl_zoo3 means "do not unpickle the schedule", which is one of SB3's own and harmless
        :param print_system_info: see SB3's load()
        :param force_reset: see SB3's load()
        :param keywords: see SB3's load()
        """
        kept = {name: value for name, value in (custom_objects or {}).items() if name != "learning_rate"}
        return super().load(path, env, device, kept, print_system_info, force_reset, **keywords)


class PlayableNOPGD(PlayableNOPG, NOPGD):
    """NOPG with a deterministic policy."""


class PlayableNOPGS(PlayableNOPG, NOPGS):
    """NOPG with a stochastic policy."""
