"""Linear dynamics with quadratic reward: the one environment whose returns and gradients can be worked out on paper."""

# ruff: noqa: N803, N806
# A, B, Q, R and K are what every text on the subject calls these matrices.

from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from scipy.linalg import solve_discrete_are, solve_discrete_lyapunov

from nopg_envs.state_picture import StateRenderer

Matrix = npt.NDArray[np.float64]


class LQREnv(gym.Env[np.ndarray, np.ndarray]):
    """
    The linear quadratic regulator x' = A x + B u of any dimension. By default the two-dimensional system of the paper's
    gradient experiment: A = diag(1.2, 1.1), B = diag(0.1, 0.2), Q = diag(-0.5, -0.25), R = diag(0.01, 0.01), γ = 0.9.

    ## Action space

    | index | action | low | high |
    | --- | --- | --- | --- |
    | 0 … | input ``u1`` … | -``action_bound`` (-25) | ``action_bound`` (25) |

    Inputs past the bound are clipped. At the default start 25 is more than any diagonal gain with a finite return asks for.

    ## Observation space

    | index | observation | low | high |
    | --- | --- | --- | --- |
    | 0 … | state ``x1`` … | -∞ | ∞ |

    In float64. The system is unstable without control, so nothing bounds the state.

    ## Reward

    ``½ (xᵀQx + uᵀRu)`` of the state that the input is applied in, to be *maximised*, discounted by γ = ``gamma``. Never
    terminal, truncated after 30 steps when made by its id.

    The paper prints R = **+0.01** together with a maximised objective, and so does this default. Inputs are then rewarded,
    not paid for, and the problem has no solution: r + γ b² q > 0 on both axes, so a huge first input followed by one that
    brings the state back to zero earns more than it costs and only ``action_bound`` limits the return. The reward is
    convex in u, so :meth:`optimal_gain` raises. With diagonal gains, the return is finite for k₁ in (-22.54, -1.46) and
    k₂ in (-10.77, -0.23), falls all the way from +∞ at the lower ends to -∞ at the upper ends and has no stationary point in
    between; returns and gradients of these gains are well defined. The paper's first gains diag(0.7, -0.7) and
    diag(0.35, -0.35) lie outside: over an infinite horizon their return is -∞, over the paper's 30 steps it is finite.
    ``R=[[-0.01, 0], [0, -0.01]]`` makes it the usual regulator, with K = diag(-6.394, -3.355).

    ## Start

    ``x0``, with Gaussian spread if asked for, or anywhere: ``reset(options={"state": x})``. ``state_space`` holds the range
    that a grid of queries covers.

    ## Closed forms

    :meth:`value`, :meth:`true_return`, :meth:`true_gradient` and :meth:`optimal_gain` are for the infinite horizon and for
    inputs that are never clipped. Policies are u = K x, or u = K x + ε with ε ~ N(0, ``policy_covariance``).

    ## Version history

    * v0: first version

    :param A: (d, d); the paper's by default, as are B, Q and R
    :param B: (d, m)
    :param Q: symmetric, (d, d)
    :param R: symmetric, (m, m)
    :param gamma: discount factor γ of the closed forms, in [0, 1)
    :param x0: mean of the start, (d,); ones by default
    :param start_covariance: spread of the start, (d, d); none by default
    :param noise_covariance: of Gaussian noise added to every next state, (d, d); none by default
    :param action_bound: largest input
    :param state_bound: half-width of ``state_space``
    :param render_mode: ``"rgb_array"``, ``"human"`` or None
    """

    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 10}  # noqa: RUF012 (Gymnasium declares it so)

    def __init__(
        self,
        A: npt.ArrayLike = ((1.2, 0.0), (0.0, 1.1)),
        B: npt.ArrayLike = ((0.1, 0.0), (0.0, 0.2)),
        Q: npt.ArrayLike = ((-0.5, 0.0), (0.0, -0.25)),
        R: npt.ArrayLike = ((0.01, 0.0), (0.0, 0.01)),
        gamma: float = 0.9,
        x0: npt.ArrayLike | None = None,
        start_covariance: npt.ArrayLike | None = None,
        noise_covariance: npt.ArrayLike | None = None,
        action_bound: float = 25.0,
        state_bound: float = 2.0,
        render_mode: str | None = None,
    ):
        d, m = _columns("A", A), _columns("B", B)
        self.A, self.B = _array("A", A, (d, d)), _array("B", B, (d, m))
        self.Q, self.R = _symmetric("Q", Q, d), _symmetric("R", R, m)
        self.x0 = np.ones(d) if x0 is None else _array("x0", x0, (d,))
        self.start_covariance = _covariance("start_covariance", start_covariance, d)
        self.noise_covariance = _covariance("noise_covariance", noise_covariance, d)
        if not 0.0 <= gamma < 1.0:
            raise ValueError(f"gamma must lie in [0, 1), got {gamma}")
        for name, bound in (("action_bound", action_bound), ("state_bound", state_bound)):
            if not (np.isfinite(bound) and bound > 0):
                raise ValueError(f"{name} must be a positive number, got {bound}")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode must be None or one of {self.metadata['render_modes']}, got {render_mode!r}")
        self.gamma, self.action_bound, self.render_mode = float(gamma), float(action_bound), render_mode
        self.action_space = spaces.Box(-self.action_bound, self.action_bound, (m,), np.float32)
        self.observation_space = spaces.Box(-np.inf, np.inf, (d,), np.float64)
        self.state_space = spaces.Box(-float(state_bound), float(state_bound), (d,), np.float64)
        self.metadata = {
            **self.metadata,
            "observation_names": tuple(f"x{i + 1}" for i in range(d)),
            "observation_units": ("1",) * d,
            "action_names": tuple(f"u{i + 1}" for i in range(m)),
            "action_units": ("1",) * m,
        }
        self.state: Matrix | None = None
        # For the picture: a path of more steps would hide itself.
        self._path: deque[Matrix] = deque(maxlen=500)
        self._last_action = np.zeros(m)
        self._renderer: StateRenderer | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        unknown = set(options or {}) - {"state"}
        if unknown:
            raise ValueError(f"Unknown reset option {sorted(unknown)}: only 'state' is understood")
        if options and "state" in options:
            state = _array("options['state']", options["state"], self.x0.shape)
        else:
            state = self.x0 + self._draw(self.start_covariance)
        self.state = state
        self._path.clear()
        self._path.append(state)
        self._last_action = np.zeros(self.B.shape[1])
        if self.render_mode == "human":
            self.render()
        return state.copy(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.state is None:
            raise gym.error.ResetNeeded("Call reset() before step()")
        x, u = self.state, np.clip(_array("action", action, (self.B.shape[1],)), -self.action_bound, self.action_bound)
        reward = 0.5 * float(x @ self.Q @ x + u @ self.R @ u)
        self.state = self.A @ x + self.B @ u + self._draw(self.noise_covariance)
        self._path.append(self.state)
        self._last_action = u
        if self.render_mode == "human":
            self.render()
        return self.state.copy(), reward, False, False, {}

    def render(self) -> np.ndarray | None:
        if self.render_mode is None:
            gym.logger.warn('render() draws nothing without a mode: gym.make(..., render_mode="rgb_array")')
            return None
        if self.state is None:
            raise gym.error.ResetNeeded("Call reset() before render()")
        if self._renderer is None:
            self._renderer = StateRenderer(
                len(self.x0),
                float(self.state_space.high[0]),
                self.action_bound,
                self.render_mode,
                fps=float(self.metadata["render_fps"]),
            )
        return self._renderer.render(list(self._path), self._last_action)

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def value(
        self, K: npt.ArrayLike, x: npt.ArrayLike, policy_covariance: npt.ArrayLike | None = None
    ) -> np.float64 | npt.NDArray[np.float64]:
        """
        Discounted return from a state under u = K x + ε, V(x) = ½ xᵀPx + c.

        :param K: gain, (m, d)
        :param x: state or states, (…, d)
        :param policy_covariance: of ε, (m, m); None for a deterministic policy
        :return: (…)
        :raises ValueError: where the gain is not discounted-stable, so that the return is not finite
        """
        gain = self._stable_gain(K)
        states = np.asarray(x, dtype=np.float64)
        if states.shape[-1:] != self.x0.shape or not np.isfinite(states).all():
            raise ValueError(f"x must hold finite states of {len(self.x0)} entries, got shape {states.shape}")
        P = self._value_matrix(gain)
        return 0.5 * np.einsum("...i,ij,...j->...", states, P, states) + self._value_offset(P, policy_covariance)

    def true_return(self, K: npt.ArrayLike, policy_covariance: npt.ArrayLike | None = None) -> float:
        """
        Expected discounted return J(K) from the start distribution; parameters and errors as in :meth:`value`.
        """
        P = self._value_matrix(self._stable_gain(K))
        return 0.5 * float(np.trace(P @ self._start_moment())) + self._value_offset(P, policy_covariance)

    def true_gradient(self, K: npt.ArrayLike, policy_covariance: npt.ArrayLike | None = None) -> Matrix:
        """
        Gradient of :meth:`true_return` with respect to every entry of K; its diagonal is that of a diagonal controller.

        :return: ∂J/∂K = ((R + γBᵀPB) K + γBᵀPA) X with the discounted second moment X = Σ γᵗ E[x xᵀ], (m, d)
        """
        gain = self._stable_gain(K)
        P = self._value_matrix(gain)
        # X = E[x₀x₀ᵀ] + γ M X Mᵀ + γ/(1-γ) W, where W is what noise adds to every next state.
        M, gamma = self.A + self.B @ gain, self.gamma
        X = solve_discrete_lyapunov(
            np.sqrt(gamma) * M, self._start_moment() + gamma / (1.0 - gamma) * self._next_state_covariance(policy_covariance)
        )
        return np.asarray((self.R @ gain + gamma * self.B.T @ P @ M) @ X, dtype=np.float64)

    def optimal_gain(self) -> Matrix:
        """
        The gain with the largest return among all that are discounted-stable, whatever the start and whatever the noise.

        :return: (m, d)
        :raises ValueError: where there is none, as with the printed R
        """
        root = np.sqrt(self.gamma)
        advice = "Penalise inputs (negative definite R) and states (Q), and make sure that B reaches what A does not damp"
        try:
            P = -solve_discrete_are(root * self.A, root * self.B, -self.Q, -self.R)
            curvature = self.R + self.gamma * self.B.T @ P @ self.B
            gain = np.asarray(-np.linalg.solve(curvature, self.gamma * self.B.T @ P @ self.A), dtype=np.float64)
            self._stable_gain(gain)
        except (np.linalg.LinAlgError, ValueError) as error:
            raise ValueError(
                f"No optimal gain: the Riccati equation has no stabilising solution ({error}). {advice}"
            ) from error
        # The solver's word is not enough: the return must be concave in the input and P the value of the gain it gives.
        if np.linalg.eigvalsh(curvature).max() >= 0 or not np.allclose(P, self._value_matrix(gain), rtol=1e-6, atol=1e-9):
            raise ValueError(f"No optimal gain: the return is not concave in the input. {advice}")
        return gain

    def _draw(self, covariance: Matrix) -> Matrix:
        if not covariance.any():
            return np.zeros(len(covariance))
        values, vectors = np.linalg.eigh(covariance)
        return vectors @ (np.sqrt(np.maximum(values, 0.0)) * self.np_random.standard_normal(len(values)))

    def _stable_gain(self, K: npt.ArrayLike) -> Matrix:
        gain = _array("K", K, (self.B.shape[1], len(self.x0)))
        radius = float(np.sqrt(self.gamma) * np.abs(np.linalg.eigvals(self.A + self.B @ gain)).max())
        if radius >= 1.0:
            raise ValueError(
                f"K is not discounted-stable: √γ (A + BK) has spectral radius {radius:.4g}, so the return is not finite. "
                "Choose a gain that brings it below one, or a smaller gamma"
            )
        return gain

    def _value_matrix(self, gain: Matrix) -> Matrix:
        """P = Q + KᵀRK + γ MᵀPM with M = A + BK, (d, d)."""
        M = self.A + self.B @ gain
        return solve_discrete_lyapunov(np.sqrt(self.gamma) * M.T, self.Q + gain.T @ self.R @ gain)

    def _value_offset(self, P: Matrix, policy_covariance: npt.ArrayLike | None) -> float:
        """What noise adds to the value of every state, c = (½ tr(RΣ) + ½ γ tr(PW)) / (1-γ)."""
        sigma = _covariance("policy_covariance", policy_covariance, self.B.shape[1])
        noise = self._next_state_covariance(policy_covariance)
        return 0.5 * float(np.trace(self.R @ sigma) + self.gamma * np.trace(P @ noise)) / (1.0 - self.gamma)

    def _next_state_covariance(self, policy_covariance: npt.ArrayLike | None) -> Matrix:
        sigma = _covariance("policy_covariance", policy_covariance, self.B.shape[1])
        return self.B @ sigma @ self.B.T + self.noise_covariance

    def _start_moment(self) -> Matrix:
        return np.outer(self.x0, self.x0) + self.start_covariance


def _columns(name: str, value: npt.ArrayLike) -> int:
    array = np.asarray(value)
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"{name} must be a matrix, got shape {array.shape}")
    return array.shape[1]


def _array(name: str, value: npt.ArrayLike, shape: tuple[int, ...]) -> Matrix:
    """A float64 copy of this shape with finite entries."""
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be numbers of shape {shape}: {error}") from error
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds NaN or infinity: {array}")
    return array


def _symmetric(name: str, value: npt.ArrayLike, size: int) -> Matrix:
    array = _array(name, value, (size, size))
    if not np.allclose(array, array.T, rtol=1e-9, atol=1e-12):
        raise ValueError(f"{name} must be symmetric: use ({name} + {name}ᵀ) / 2, which weighs the same")
    return array


def _covariance(name: str, value: npt.ArrayLike | None, size: int) -> Matrix:
    if value is None:
        return np.zeros((size, size))
    array = _symmetric(name, value, size)
    if np.linalg.eigvalsh(array).min() < -1e-12 * max(1.0, np.abs(array).max()):
        raise ValueError(f"{name} must be positive semi-definite, as a covariance is")
    return array


def register() -> None:
    """Make ``nopg/LQR-v0`` known to Gymnasium."""
    gym.register("nopg/LQR-v0", entry_point="nopg_envs.lqr:LQREnv", max_episode_steps=30)
