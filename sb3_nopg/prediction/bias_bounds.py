"""
How far off can the estimates be? The paper's bias bounds (theorems 2 and 3) as numbers.

Both printed bounds lost a factor of two, and the second one a whole term; the docstrings say what is computed instead and
why. All Lipschitz constants are with respect to one and the same norm, Euclidean or L1: a function that is L-Lipschitz in
the Euclidean norm is so in the L1 norm, which is the one that the proofs use.
"""

import math

import numpy as np
import scipy
from numpy.typing import ArrayLike

from sb3_nopg.common.errors import InputError
from sb3_nopg.common.numbers import check_number

__all__ = ["bias_bound_regression", "bias_bound_value"]


def bias_bound_regression(lipschitz_function: float, lipschitz_log_density: float, bandwidth: ArrayLike) -> float:
    """
    Bound on the bias of Nadaraya-Watson regression with Gaussian kernels and infinitely many samples (theorem 2),

        |E f̂(x) − f(x)|  ≤  2 L_f Σ_k h_k (1/√2π + ½ L_β h_k χ_k) Π_{i≠k} χ_i / Π_i e^{(L_β h_i)²/2} (1 − erf(L_β h_i/√2))

    with χ_i = e^{(L_β h_i)²/2} (1 + erf(L_β h_i/√2)). It holds at every x.

    The paper prints this without the factor 2 in front. That cannot be: with an even density, as flat as one likes, and
    f(x) = L_f |x|, the bias at zero is L_f E|h ξ| = 2 L_f h/√2π, twice what is printed for L_β = 0. The factor belongs to
    ∫ |l| e^{L|l|} N(l; 0, h²) dl = 2h (1/√2π + ½ L h χ), an integral over both half-lines.

    :param lipschitz_function: L_f, Lipschitz constant of the regression function
    :param lipschitz_log_density: L_β, Lipschitz constant of the logarithm of the samples' density. A finite one needs a
        density that is positive everywhere; zero is the limit of a flat density
    :param bandwidth: standard deviations of the kernel, (d,)
    :return: the bound; infinite where it is too large for a float
    """
    lipschitz_function = _constant("lipschitz_function", lipschitz_function)
    lipschitz_log_density = _constant("lipschitz_log_density", lipschitz_log_density)
    bandwidth = _bandwidth("bandwidth", bandwidth)
    return _smoothing_bias(lipschitz_function, lipschitz_log_density, bandwidth)


def bias_bound_value(
    lipschitz_reward: float,
    lipschitz_value: float,
    lipschitz_log_density: float,
    state_bandwidth: ArrayLike,
    action_bandwidth: ArrayLike,
    next_state_bandwidth: ArrayLike,
    gamma: float,
    *,
    lipschitz_transition: float = 0.0,
) -> float:
    """
    Bound on the bias of the estimated value function with infinitely many samples (theorem 3),

        |E V̂(s) − V(s)|  ≤  ( A(L_R + γ L_V L_P) + γ L_V Σ_k h_ϕ,k √(2/π) ) / (1 − γ)

    where A(L) is :func:`bias_bound_regression` of an L-Lipschitz function over states and actions together.

    Two corrections to the print. The last term's mean deviation of a Gaussian, E|h ξ| = h √(2/π), is right in the
    proof until its last line, where 2h/√2π becomes h/√2π. And the proof takes the next state of a neighbouring sample
    (z, b) to be distributed like that of the query (s, a); it is not, and the smoothing of the *transitions*
    over states and actions adds γ A(L_V L_P), where L_P says how fast the next state's distribution changes. With
    ``lipschitz_transition=0`` the result is the paper's statement with its factors of two, which bounds the bias only where
    next states do not depend on state and action: pass the constant for a bound that holds.

    :param lipschitz_reward: L_R, Lipschitz constant of the mean reward over states and actions
    :param lipschitz_value: L_V, Lipschitz constant of the *estimated* value function
    :param lipschitz_log_density: L_β, Lipschitz constant of the logarithm of the data's density over states and actions
    :param state_bandwidth: h_ψ, (d_s,)
    :param action_bandwidth: h_φ, (d_a,)
    :param next_state_bandwidth: h_ϕ, (d_s,)
    :param gamma: discount factor, 0 <= γ < 1
    :param lipschitz_transition: L_P, the Wasserstein-1 distance between two next-state distributions is at most
        L_P times the distance between their states and actions; for s' = g(s, a), the Lipschitz constant of g
    :return: the bound; infinite where it is too large for a float
    """
    lipschitz_reward = _constant("lipschitz_reward", lipschitz_reward)
    lipschitz_value = _constant("lipschitz_value", lipschitz_value)
    lipschitz_transition = _constant("lipschitz_transition", lipschitz_transition)
    lipschitz_log_density = _constant("lipschitz_log_density", lipschitz_log_density)
    check_number("gamma", gamma, 0.0, 1.0, low_included=True)
    gamma = float(gamma)
    state_bandwidth = _bandwidth("state_bandwidth", state_bandwidth)
    action_bandwidth = _bandwidth("action_bandwidth", action_bandwidth)
    next_state_bandwidth = _bandwidth("next_state_bandwidth", next_state_bandwidth)
    if len(next_state_bandwidth) != len(state_bandwidth):
        raise InputError(
            "next_state_bandwidth",
            f"{len(next_state_bandwidth)} entries, but state_bandwidth has {len(state_bandwidth)}",
            "Give one standard deviation for each state dimension",
        )

    # Smoothing r and smoothing γ E[V(s')] over (s, a): two regressions whose bounds add up, linear in the constant.
    smoothing = _smoothing_bias(
        lipschitz_reward + gamma * lipschitz_value * lipschitz_transition,
        lipschitz_log_density,
        np.concatenate([state_bandwidth, action_bandwidth]),
    )
    # Smoothing V over next states: the mean deviation of a Gaussian in each dimension.
    next_state_spread = gamma * lipschitz_value * math.fsum(next_state_bandwidth) * math.sqrt(2.0 / math.pi)
    return (smoothing + next_state_spread) / (1.0 - gamma)


def _smoothing_bias(lipschitz_function: float, lipschitz_log_density: float, bandwidth: np.ndarray) -> float:
    """The formula of :func:`bias_bound_regression`, for arguments that have been checked."""
    if lipschitz_function == 0.0:
        return 0.0
    # In log space, because χ overflows from L_β h = 38 on, and a product of several χ earlier.
    # Zeros and infinities inside the logarithms (L_β h underflowed, or enormous) lead to the right limits.
    with np.errstate(divide="ignore", over="ignore"):
        scaled = lipschitz_log_density * bandwidth  # L_β h, (d,)
        log_chi = np.log(2.0) + scipy.special.log_ndtr(scaled) + 0.5 * scaled**2  # log of ∫ e^{L|l|} N(l; 0, h²) dl
        log_shrinkage = np.log(scipy.special.erfcx(scaled / np.sqrt(2.0)))  # log of ∫ e^{−L|l|} N(l; 0, h²) dl
        # log of ∫ |l| e^{L|l|} N(l; 0, h²) dl = 2h (1/√2π + ½ L h χ)
        log_spread = np.log(2.0 * bandwidth) + np.logaddexp(-0.5 * np.log(2.0 * np.pi), np.log(0.5 * scaled) + log_chi)
        log_terms = [log_spread[k] + np.delete(log_chi, k).sum() for k in range(len(bandwidth))]
        return float(np.exp(np.log(lipschitz_function) + scipy.special.logsumexp(log_terms) - log_shrinkage.sum()))


def _constant(field: str, constant: float) -> float:
    """The number as a finite, non-negative float."""
    check_number(field, constant, 0.0, math.inf, low_included=True, fix="Give a finite number that is zero or positive")
    return float(constant)


def _bandwidth(field: str, bandwidth: ArrayLike) -> np.ndarray:
    """The bandwidths as a float64 vector of finite, positive entries, (d,)."""
    fix = "Give one positive standard deviation for each dimension, as a vector"
    try:
        vector = np.asarray(bandwidth, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(field, "not an array of numbers", fix) from None
    if vector.ndim != 1 or len(vector) == 0:
        raise InputError(field, f"shape {vector.shape} is not that of a vector with an entry for each dimension", fix)
    if not np.isfinite(vector).all() or (vector <= 0.0).any():
        raise InputError(field, f"{vector.tolist()} has entries that are not finite and positive", fix)
    return vector
