"""The paper's choices where this library has others, or may come to."""

from typing import Any

#: arguments of :class:`sb3_nopg.NOPG`: ``NOPG("MlpPolicy", env, dataset=data, **AS_IN_THE_PAPER)``
AS_IN_THE_PAPER: dict[str, Any] = {
    "transitions": "samples",
    "estimator_kwargs": {
        "state_bandwidth": "cross_validation",
        "action_bandwidth": "cross_validation",
        "next_state_bandwidth": "cross_validation",
        "weights": "local_constant",
        "pessimism": 0.0,
        "spread_actions": False,
    },
    "keep": "last",
}
