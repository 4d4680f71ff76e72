"""The baselines' hyper-parameters as the paper's appendix prints them."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class PaperSettings:
    """
    :param arguments: of :class:`.PWIS`, :class:`.OfflineDPG`, :func:`.offline_ddpg` or :func:`.online_ddpg`
    :param n_updates: of the policy; None where the paper does not tell
    """

    arguments: Mapping[str, Any]
    n_updates: int | None


def _settings(n_updates: int | None, **arguments: Any) -> PaperSettings:
    return PaperSettings(MappingProxyType(arguments), n_updates)


# Networks, τ and learning rates of DDPG are the same everywhere: the defaults of the functions that make it. The paper's
# σ = sigmoid(.) ≤ 1 in the environment's units is a share of the action range: ±2 on the pendulum, ±5 V on the cart-pole.
PAPER_SETTINGS: Mapping[tuple[str, str], PaperSettings] = MappingProxyType(
    {
        ("lqr", "dpg"): _settings(
            None,
            policy="LinearPolicy",
            learning_rate=0.5,
            gamma=0.9,
            tau=0.01,
            policy_kwargs={"diagonal": True, "initial_gain": [[0.7, 0.0], [0.0, -0.7]]},
        ),
        ("lqr", "pwis"): _settings(
            None,
            policy="LinearPolicy",
            learning_rate=2.5e-4,
            gamma=0.9,
            policy_kwargs={"diagonal": True, "initial_gain": [[0.35, 0.0], [0.0, -0.35]], "std": 0.1},
        ),
        ("pendulum", "pwis"): _settings(
            2_000, policy="MlpPolicy", learning_rate=1e-2, gamma=0.97, policy_kwargs={"max_std": 0.5}
        ),
        ("pendulum", "offline_ddpg"): _settings(2_000, gamma=0.97),
        ("pendulum", "online_ddpg"): _settings(300_000, gamma=0.97),
        ("cartpole", "pwis"): _settings(
            2_000, policy="MlpPolicy", learning_rate=1e-3, gamma=0.99, policy_kwargs={"max_std": 0.2}
        ),
        ("cartpole", "offline_ddpg"): _settings(2_000, gamma=0.99),
        ("cartpole", "online_ddpg"): _settings(200_000, gamma=0.99),
    }
)
