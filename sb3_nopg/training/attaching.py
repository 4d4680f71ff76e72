"""What data and settings make before the first update. What cannot be right is refused here, not in the middle of a run."""

from collections.abc import Callable
from dataclasses import replace

from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

from sb3_nopg.bellman.settings import EstimatorSettings
from sb3_nopg.data.buffer import check_fits_spaces, check_observations_inside
from sb3_nopg.data.dataset import TransitionDataset, check_dataset
from sb3_nopg.data.held_out import split_off
from sb3_nopg.data.quantities import Quantities, check_same, check_same_period
from sb3_nopg.dynamics.model_settings import check_model_settings
from sb3_nopg.policies.nopg_policy import NOPGPolicy
from sb3_nopg.policies.told_names import told_by_environment
from sb3_nopg.prediction.estimator import Estimator
from sb3_nopg.prediction.starts import Starts
from sb3_nopg.training.log import announce_too_many_neighbors, announce_what_misleads
from sb3_nopg.training.training import Training


def check_data(
    dataset: TransitionDataset,
    observation_space: spaces.Box,
    action_space: spaces.Box,
    env: VecEnv | None,
    known: Quantities | None,
) -> TransitionDataset:
    """
    :param dataset: to learn from
    :param observation_space: of the model
    :param action_space: of the model
    :param env: of the model, which may have names and units for the columns; None for none
    :param known: names and units of the data before
    :return: the same, with the environment's names and units where they have none of their own
    :raises InputError: unless all of them fit each other
    """
    check_dataset(dataset)
    check_fits_spaces(dataset, observation_space, action_space)
    check_observations_inside(dataset, observation_space)
    metadata, own = told_by_environment(env), dataset.quantities
    told = Quantities.told_by(metadata, dataset.observation_dim, dataset.action_dim)
    told_s = metadata.get("control_period_s")
    # What an environment says of itself was not written for us: what is no time is no reason to stop.
    if own is not None and isinstance(told_s, int | float) and told_s > 0:
        check_same_period("dataset", own.control_period_s, "the data", told_s, "the environment")
    check_same("dataset", dataset.quantities, "the data", told, "the environment")
    check_same("dataset", dataset.quantities, "the data", known, "the model")
    return dataset if dataset.quantities is not None or told is None else replace(dataset, quantities=told)


def attach(
    starts: Starts,
    held_out: float | TransitionDataset | None,
    settings: EstimatorSettings,
    epoch: int,
    policy: NOPGPolicy,
    make_policy: Callable[[], NOPGPolicy],
) -> Training:
    """
    :param starts: of the task, with the data
    :param held_out: share of the data to check on, or other data; None for no check
    :param settings: of what is estimated
    :param epoch: how often draws have been made again
    :param policy: to train
    :param make_policy: makes another one like it, on the processor
    :return: the training, from where the policy is
    """
    starts.check()
    training_data, held_out_data = split_off(starts.data, held_out)
    estimator = Estimator(training_data, settings, starts, epoch)
    if settings.transitions == "model":
        # A model of all rows is made when needed.
        check_model_settings(training_data, settings.model_kwargs, starts.given)
        announce_what_misleads(training_data, settings.gamma, settings.model_kwargs.get("reward"))
    # Bandwidths that cannot be are told here too.
    _ = estimator.bandwidths
    announce_too_many_neighbors(settings.samples.n_neighbors, len(training_data))
    return Training(policy, estimator, None if held_out_data is None else estimator.on(held_out_data), make_policy)
