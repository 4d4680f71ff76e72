"""Settings of what is estimated, and of the paper's estimator on samples."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

from sb3_nopg.common.errors import InputError
from sb3_nopg.common.numbers import check_count, check_number
from sb3_nopg.kernels.neighbors import NeighborCount, check_neighbor_count

#: a number, one for each dimension, or the name of a rule
BandwidthChoice = str | float | list[float] | np.ndarray
#: a number, or one for each dimension
Factor = float | list[float] | np.ndarray

_N_SPREAD_ACTIONS, _N_INDEPENDENT_ACTIONS = 8, 15


@dataclass(frozen=True, eq=False)
class SampleSettings:
    """
    ``estimator_kwargs`` of :class:`sb3_nopg.NOPG`. With ``transitions="model"`` only ``n_action_samples`` and
    ``solver_tolerance`` have a say in training; the others shape :meth:`~sb3_nopg.NOPG.support` and the report.

    :param state_bandwidth: of the state kernel, in the data's units: a number, one for each dimension, or the name of a rule
    :param action_bandwidth: of the action kernel
    :param next_state_bandwidth: of the next-state kernel, which counts with several ``n_next_state_samples``
    :param state_bandwidth_factor: multiplies the bandwidth; a number or one for each dimension
    :param action_bandwidth_factor: the same for actions
    :param next_state_bandwidth_factor: the same for next states
    :param n_action_samples: draws of the action at each state for the integral over a stochastic policy; None for 8 where they
        are spread, and else for 15
    :param spread_actions: one of these draws from each of so many equally probable parts of the policy, instead of all from
        the whole of it: 8 such gave a more exact gradient than 15 others in all cases that were tried
        (``benchmarks/action_draws.py``). Training with ``transitions="model"`` has independent ones at the model's nodes
    :param n_next_state_samples: draws of the next state for the integral over its kernel; with one, the kernel's mean
    :param resample_interval: updates after which all draws are made again; None to keep them, which makes the objective a
        fixed function
    :param query_batch_size: estimate each gradient from so many states, drawn at every update, instead of all: values are
        still computed in full, the policy network's backward pass and the derivative are not; None for all
    :param weights: ``"local_constant"``, the paper's kernel weights, or ``"local_linear"``: corrected to first order, so that
        the samples' mean lies where the state and the action are (:mod:`sb3_nopg.kernels.local_linear`)
    :param n_neighbors: samples considered at each state: a count, ``"auto"`` for as many as ``truncation_tolerance`` asks for,
        None for all (exact, and quadratic in memory)
    :param truncation_tolerance: share of any state's kernel mass that ``"auto"`` may leave out. It concerns the state kernel;
        what may be missing under the policy's actions is logged as ``train/truncation_error``
    :param keep_largest: the paper's sparsification: keep so many entries of each row of the transition matrix
    :param kl_bound: the paper's other one: keep as few entries as stay within this divergence; for a stochastic policy, of
        the row averaged over its actions
    :param pessimism: weight, in samples, of an imaginary sample of the worst value at every state and action: where fewer
        real ones stand behind an estimate, it counts for more; 0 for none. It is a risk at every step, so that (1 − gamma)
        times the usual support is a lot already
    :param solver_tolerance: relative residual of the linear systems
    :param precision: ``"float64"`` or ``"float32"`` for everything but the policy network
    """

    state_bandwidth: BandwidthChoice = "effective_neighbors"
    action_bandwidth: BandwidthChoice = "effective_neighbors"
    next_state_bandwidth: BandwidthChoice = "effective_neighbors"
    state_bandwidth_factor: Factor = 1.0
    action_bandwidth_factor: Factor = 1.0
    next_state_bandwidth_factor: Factor = 1.0
    n_action_samples: int | None = None
    spread_actions: bool = True
    n_next_state_samples: int = 1
    resample_interval: int | None = None
    query_batch_size: int | None = None
    weights: str = "local_linear"
    n_neighbors: NeighborCount = "auto"
    truncation_tolerance: float = 1e-3
    keep_largest: int | None = None
    kl_bound: float | None = None
    pessimism: float = 0.0
    solver_tolerance: float = 1e-6
    precision: str = "float64"

    def __post_init__(self) -> None:
        check_number("truncation_tolerance", self.truncation_tolerance, 0.0, 1.0)
        check_number("solver_tolerance", self.solver_tolerance, 0.0, 1.0)
        check_number("pessimism", self.pessimism, 0.0, np.inf, low_included=True)
        check_number("kl_bound", self.kl_bound, 0.0, np.inf, optional=True)
        check_count("n_next_state_samples", self.n_next_state_samples)
        if not isinstance(self.spread_actions, bool):
            raise InputError("spread_actions", f"{self.spread_actions!r} is neither True nor False", "Give True or False")
        for name in ("n_action_samples", "keep_largest", "resample_interval", "query_batch_size"):
            check_count(name, getattr(self, name), optional=True)
        check_neighbor_count(self.n_neighbors)
        if self.weights not in ("local_constant", "local_linear"):
            raise InputError("weights", f"{self.weights!r} is unknown", 'Give "local_constant" or "local_linear"')
        if self.precision not in ("float32", "float64"):
            raise InputError("precision", f"{self.precision!r} is unknown", 'Give "float64" or "float32"')

    @classmethod
    def of(cls, given: dict[str, Any] | None) -> "SampleSettings":
        """
        :param given: some of the settings by name; None for none
        :raises InputError: naming the first that cannot be right
        """
        if not isinstance(given, dict | None):
            raise InputError("estimator_kwargs", f"{given!r} is no dict", f"Give some of {', '.join(NAMES)}")
        unknown = sorted(str(name) for name in set(given or {}) - set(NAMES))
        if unknown:
            raise InputError("estimator_kwargs", f"{unknown[0]!r} is unknown", f"Use {', '.join(NAMES)}")
        return cls(**(given or {}))

    @property
    def n_actions_at_queries(self) -> int:
        """Draws of the action at each state of the equation on samples."""
        return self.n_action_samples or (_N_SPREAD_ACTIONS if self.spread_actions else _N_INDEPENDENT_ACTIONS)

    @property
    def n_actions_at_nodes(self) -> int:
        """Those at each node of a model."""
        return self.n_action_samples or _N_INDEPENDENT_ACTIONS

    @property
    def dtype(self) -> th.dtype:
        """Of all computations but the policy network's."""
        return th.float64 if self.precision == "float64" else th.float32


#: of the settings
NAMES = tuple(field.name for field in fields(SampleSettings))


@dataclass(frozen=True, eq=False)
class EstimatorSettings:
    """
    :param gamma: discount
    :param transitions: ``"model"`` or ``"samples"``
    :param samples: of the equation on samples
    :param model_kwargs: of the model, see :meth:`sb3_nopg.DynamicsModel.fit`
    :param action_space: what policies can do
    :param is_stochastic: whether policies draw their actions
    :param n_units: of the policies' layers, all together: what they need of the memory
    :param seed: of all draws
    :param device: to work on
    """

    gamma: float
    transitions: str
    samples: SampleSettings
    model_kwargs: dict[str, Any]
    action_space: spaces.Box
    is_stochastic: bool
    n_units: int
    seed: int
    device: th.device

    @property
    def on_model(self) -> bool:
        """Whether next states come from a model."""
        return self.transitions == "model"


def grouped(settings: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """
    :param settings: arguments of NOPG, those of the estimator in their group or not
    :param changes: more of the same, which count where both have a say
    :return: arguments of NOPG, those of the estimator in ``estimator_kwargs``
    """
    flat: dict[str, Any] = {}
    for part in (settings, changes):
        flat |= part.get("estimator_kwargs") or {}
        flat |= {name: value for name, value in part.items() if name != "estimator_kwargs"}
    estimator = {name: flat.pop(name) for name in NAMES if name in flat}
    return {**flat, "estimator_kwargs": estimator} if estimator else flat
