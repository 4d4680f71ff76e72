"""What a hyper-parameter search tries for NOPG, in the form that rl_zoo3 asks for."""

from typing import Any

import optuna


def sample(trial: optuna.Trial, n_actions: int, n_envs: int, additional_args: dict[str, Any]) -> dict[str, Any]:
    """
    :param trial: asked for values
    :param n_actions: unused, as are the other two; rl_zoo3's samplers share one signature
    :param n_envs: unused
    :param additional_args: unused
    :return: arguments of the algorithm
    """
    sampled: dict[str, Any] = {
        # γ itself would be searched evenly between 0.9 and 0.999, where 0.99 and 0.999 differ most.
        "one_minus_gamma": trial.suggest_float("one_minus_gamma", 0.003, 0.1, log=True),
        "learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True),
    }
    trial.set_user_attr("gamma", 1.0 - sampled["one_minus_gamma"])
    return convert(sampled)


def convert(sampled: dict[str, Any]) -> dict[str, Any]:
    """
    :param sampled: values under the names that a study stores
    :return: arguments of the algorithm
    """
    arguments = dict(sampled)
    arguments["gamma"] = 1.0 - arguments.pop("one_minus_gamma")
    return arguments
