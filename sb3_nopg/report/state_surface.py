"""
The surface that states lie on, found from states alone.

Observations are often bound by a relation: sin²θ + cos²θ = 1, a quaternion of length one, a sum of shares, a switch that is 0
or 1. Noise in each dimension on its own leaves such a surface, for states that cannot be. Linear relations are directions in
which nothing varies; those of second order are the combinations of products of two coordinates that are zero at every state.
Both are null spaces of moment matrices, so that nobody has to name them. Relations of higher order are not found.
"""

import numpy as np

# A relation counts as one where it holds to this, in standard deviations (root mean square).
_TOLERANCE = 1e-3
# Stricter for linear ones: a position and the one a moment before differ by little, and that little is the velocity.
_LINEAR_TOLERANCE = 1e-5
# Products of coordinates that are tried, and states for each of them, lest a few states seem to be bound by chance.
_MOST_PRODUCTS, _STATES_FOR_EACH, _MOST_STATES = 500, 4, 20_000
_N_STEPS = 20


class StateSurface:
    """
    :param states: that lie on it, in any units, (n, d)
    """

    def __init__(self, states: np.ndarray):
        states = states[:: -(-len(states) // _MOST_STATES)].astype(np.float64)
        self._mean = states.mean(axis=0)
        spread = states.std(axis=0)
        self._spread = np.where(spread > 0, spread, 1.0)
        standard = (states - self._mean) / self._spread
        variances, directions = np.linalg.eigh(standard.T @ standard / len(standard))
        varying = variances > _LINEAR_TOLERANCE**2
        # From coordinates along the principal directions, in units of their own spread, to standardised states.
        self._axes = directions[:, varying] * np.sqrt(variances[varying])
        self._inverse_axes = directions[:, varying] / np.sqrt(variances[varying])
        self.n_linear = int((~varying).sum())
        self._rows, self._columns = np.triu_indices(int(varying.sum()))
        self._relations = self._null_space(standard @ self._inverse_axes)

    @property
    def n_quadratic(self) -> int:
        """How many relations of second order bind the states."""
        return len(self._relations)

    def _null_space(self, coordinates: np.ndarray) -> np.ndarray:
        """Coefficients of 1, y_i and y_i y_j that give zero at every state, (c, 1 + r + r (r + 1) / 2)."""
        n_products = 1 + coordinates.shape[1] + len(self._rows)
        if n_products > _MOST_PRODUCTS or len(coordinates) < _STATES_FOR_EACH * n_products:
            return np.empty((0, n_products))
        products = self._products(coordinates)
        _, sizes, combinations = np.linalg.svd(products / np.sqrt(len(products)), full_matrices=False)
        return combinations[sizes < _TOLERANCE]

    def _products(self, coordinates: np.ndarray) -> np.ndarray:
        pairs = coordinates[:, self._rows] * coordinates[:, self._columns]
        return np.concatenate([np.ones((len(coordinates), 1)), coordinates, pairs], axis=1)

    @property
    def n_free(self) -> int:
        """Directions in which states vary."""
        return self._axes.shape[1]

    def spread_out(self, noise: np.ndarray) -> np.ndarray:
        """
        Noise that scatters as the states do: little where they hardly differ, as a position and the one before it.

        :param noise: standard normal, (m, n_free)
        :return: (m, d)
        """
        return self._spread * (noise @ self._axes.T)

    def project(self, states: np.ndarray) -> np.ndarray:
        """
        :param states: near the surface, (m, d)
        :return: on it, (m, d)
        """
        coordinates = ((states - self._mean) / self._spread) @ self._inverse_axes
        if self.n_quadratic:
            coordinates = self._onto_relations(coordinates)
        return self._mean + self._spread * (coordinates @ self._axes.T)

    def _onto_relations(self, coordinates: np.ndarray) -> np.ndarray:
        """Gauss-Newton: with c the relations and J their derivatives, the shortest step that makes c + J Δy zero."""
        n_dims = coordinates.shape[1]
        linear, quadratic = self._relations[:, 1 : 1 + n_dims], np.zeros((self.n_quadratic, n_dims, n_dims))
        quadratic[:, self._rows, self._columns] += self._relations[:, 1 + n_dims :]
        quadratic += quadratic.swapaxes(1, 2)
        for _ in range(_N_STEPS):
            values = self._products(coordinates) @ self._relations.T
            if np.abs(values).max(initial=0.0) < 1e-12:
                break
            slopes = linear + np.einsum("cij,mj->mci", quadratic, coordinates)
            # Relations can depend on each other, and a slope is zero in the middle of a circle.
            normal = slopes @ slopes.swapaxes(1, 2) + 1e-9 * np.eye(self.n_quadratic)
            steps = (slopes.swapaxes(1, 2) @ np.linalg.solve(normal, values[..., None]))[..., 0]
            # A step longer than the spread of all states is a slope near zero.
            coordinates = coordinates - np.clip(steps, -1.0, 1.0)
        return coordinates
