"""
One-dimensional problems whose truth is known, and their kernel estimates from infinitely many samples, by quadrature.

Samples have a Laplace density, whose logarithm has one Lipschitz constant everywhere, as the theorems ask for. The chain is
s' = 0.7 s + 0.5 a under the policy a = -0.5 s, so that its states are 0.45ᵗ s.
"""

import numpy as np

from sb3_nopg.data.dataset import TransitionDataset

# Lipschitz constants are with respect to |Δs| + |Δa|, in which that of the log-density is the same for one dimension and two.
STATE_FACTOR, ACTION_FACTOR, GAIN = 0.7, 0.5, -0.5
CLOSED_LOOP = STATE_FACTOR + ACTION_FACTOR * GAIN
LIPSCHITZ_TRANSITION = max(STATE_FACTOR, ACTION_FACTOR)
GAMMA = 0.9
# Steps after which γᵗ is below rounding.
_N_STEPS = 350
# States that values are kept at. Kernels of at most 0.4 about states of at most 2 do not see beyond.
_STATES = np.linspace(-6.0, 6.0, 601)
# Bandwidths on either side of a state that quadratures go.
_REACH = 6.0


def function_values(function: str, lipschitz: float, x: np.ndarray) -> np.ndarray:
    """
    :param function: ``"cone"``, -L|x|, or ``"cosine"``, cos(L x)
    :param lipschitz: L, its Lipschitz constant
    :param x: where
    """
    return -lipschitz * np.abs(x) if function == "cone" else np.cos(lipschitz * x)


def true_values(function: str, lipschitz: float, states: np.ndarray) -> np.ndarray:
    """
    V(s) = Σ γᵗ r(0.45ᵗ s) of the chain with the reward r(s).

    :param function: of :func:`function_values`
    :param lipschitz: L
    :param states: (m,)
    """
    steps = np.arange(_N_STEPS)
    visited = states[:, None] * CLOSED_LOOP**steps
    return np.asarray((GAMMA**steps * function_values(function, lipschitz, visited)).sum(axis=1))


def regression_limit(function: str, lipschitz: float, decay: float, bandwidth: float, points: np.ndarray) -> np.ndarray:
    """
    What Nadaraya-Watson regression tends to with more and more samples.

    :param function: of :func:`function_values`
    :param lipschitz: L_f
    :param decay: L_β, the samples have density ∝ e^{-L_β |x|}
    :param bandwidth: h
    :param points: (m,)
    :return: (m,)
    """
    offsets = bandwidth * np.linspace(-_reach(decay, bandwidth), _reach(decay, bandwidth), 4001)
    nodes = points[:, None] + offsets
    log_weights = -0.5 * (offsets / bandwidth) ** 2 - decay * np.abs(nodes)
    weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
    return np.asarray((weights * function_values(function, lipschitz, nodes)).sum(axis=1) / weights.sum(axis=1))


def value_limit(
    function: str, lipschitz: float, decay: float, bandwidth: float, points: np.ndarray
) -> tuple[np.ndarray, float]:
    """
    What the nonparametric Bellman equation's value tends to with more and more samples: the solution of
    V(s) = E[r(z) + γ V(0.7 z + 0.5 b + h ξ)], (z, b) by the kernels about (s, -0.5 s) and the density of the data.

    :param function: the reward, of :func:`function_values`
    :param lipschitz: L_R
    :param decay: L_β, samples have density ∝ e^{-L_β (|s| + |a|)}
    :param bandwidth: h of states, actions and next states
    :param points: (m,)
    :return: values, (m,), and their Lipschitz constant L_V
    """
    state_nodes, state_weights = _kernel_nodes(_STATES, decay, bandwidth, 41)
    action_nodes, action_weights = _kernel_nodes(GAIN * _STATES, decay, bandwidth, 21)
    noise, noise_weights = np.polynomial.hermite_e.hermegauss(5)
    next_states = (
        STATE_FACTOR * state_nodes[:, :, None, None] + ACTION_FACTOR * action_nodes[:, None, :, None] + bandwidth * noise
    )
    weights = state_weights[:, :, None, None] * action_weights[:, None, :, None] * (noise_weights / noise_weights.sum())
    transition = _interpolation(next_states.reshape(len(_STATES), -1), weights.reshape(len(_STATES), -1))
    rewards = (state_weights * function_values(function, lipschitz, state_nodes)).sum(axis=1)
    values = np.linalg.solve(np.eye(len(_STATES)) - GAMMA * transition, rewards)
    slope = float(np.abs(np.diff(values) / np.diff(_STATES)).max())
    return np.interp(points, _STATES, values), slope


def chain_data(function: str, lipschitz: float, decay: float, n_samples: int, seed: int) -> TransitionDataset:
    """
    One-step samples of the chain.

    :param function: the reward, of :func:`function_values`
    :param lipschitz: L_R
    :param decay: L_β
    :param n_samples: of them
    :param seed: of states and actions
    """
    states, actions = np.random.default_rng(seed).laplace(scale=1.0 / decay, size=(2, n_samples, 1))
    return TransitionDataset(
        states,
        actions,
        function_values(function, lipschitz, states[:, 0]),
        STATE_FACTOR * states + ACTION_FACTOR * actions,
        np.zeros(n_samples, dtype=bool),
    )


def _reach(decay: float, bandwidth: float) -> float:
    # The density pulls the kernel's mass towards zero by up to L h².
    return _REACH + decay * bandwidth


def _kernel_nodes(centers: np.ndarray, decay: float, bandwidth: float, n_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes about each centre and their weights, kernel times density, rows that sum to one, (m, nodes) each."""
    offsets = bandwidth * np.linspace(-_reach(decay, bandwidth), _reach(decay, bandwidth), n_nodes)
    nodes = centers[:, None] + offsets
    log_weights = -0.5 * (offsets / bandwidth) ** 2 - decay * np.abs(nodes)
    weights = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
    return nodes, weights / weights.sum(axis=1, keepdims=True)


def _interpolation(places: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weights of places brought to the states on either side, linearly, (m, nodes) -> (m, states)."""
    spacing = _STATES[1] - _STATES[0]
    position = np.clip((places - _STATES[0]) / spacing, 0.0, len(_STATES) - 1.0)
    left = np.minimum(position.astype(np.int64), len(_STATES) - 2)
    share = position - left
    first = np.arange(len(places))[:, None] * len(_STATES) + left
    cells = np.concatenate([first.ravel(), first.ravel() + 1])
    entries = np.concatenate([(weights * (1.0 - share)).ravel(), (weights * share).ravel()])
    return np.bincount(cells, entries, len(places) * len(_STATES)).reshape(len(places), len(_STATES))
