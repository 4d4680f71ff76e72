"""
Dry friction, which every cart on a rail has and no affine model knows.

Friction holds what would move slowly. A speed that would become v without it becomes about v − s tanh(v / s): nothing is left
of a small one, and of a large one all but s. So tanh(v̂ / s) is one more input of the regression, and what it does to each
coordinate is learned. v̂ is the coordinate after the step, as one affine model of all samples predicts it. The coordinate
before the step would not do: what stands still is moved by a large action and not by a small one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch as th

from sb3_nopg.dynamics.affine import AffineRegression, Samples


@dataclass(frozen=True)
class Held:
    """
    A coordinate that friction holds.

    :param coordinate: its number
    :param size: s, in the coordinate's unit
    """

    coordinate: int
    size: float


@dataclass(frozen=True)
class DryFriction:
    """
    tanh(v̂ / s) of k coordinates, v̂ = constant + A x + B sin x + C cos x + D u.

    :param size: s, (k,)
    :param constant: (k,)
    :param of_states: A, (k, d)
    :param of_sines: B, (k, d), zero but for angles that go far
    :param of_cosines: C, of the same kind
    :param of_inputs: D, (k, p)
    """

    size: th.Tensor
    constant: th.Tensor
    of_states: th.Tensor
    of_sines: th.Tensor
    of_cosines: th.Tensor
    of_inputs: th.Tensor

    @classmethod
    def fit(cls, samples: Samples, held: Sequence[Held]) -> "DryFriction | None":
        """
        :param samples: of changes, without friction
        :param held: coordinates that friction holds; none for no friction
        """
        if not held:
            return None
        columns = [one.coordinate for one in held]
        affine = AffineRegression(samples.of_targets(columns)).unscaled()
        of_states = affine.of_states.clone()
        # The next state, not the change.
        of_states[range(len(columns)), columns] += 1.0
        size = samples.states.new_tensor([one.size for one in held])
        return cls(size, affine.constant, of_states, affine.of_sines, affine.of_cosines, affine.of_inputs)

    def to(self, device: th.device) -> "DryFriction":
        """The same on a device."""
        return DryFriction(*(part.to(device) for part in self._parts))

    @property
    def _parts(self) -> tuple[th.Tensor, ...]:
        return self.size, self.constant, self.of_states, self.of_sines, self.of_cosines, self.of_inputs

    def __len__(self) -> int:
        return len(self.size)

    def __call__(self, states: th.Tensor, inputs: th.Tensor) -> th.Tensor:
        """
        :param states: x, (m, d)
        :param inputs: u, actions and earlier steps, (m, p)
        :return: (m, k)
        """
        speed = self.constant + states @ self.of_states.T + inputs @ self.of_inputs.T
        speed = speed + states.sin() @ self.of_sines.T + states.cos() @ self.of_cosines.T
        return th.tanh(speed / self.size)

    def beside(self, states: th.Tensor, inputs: th.Tensor) -> th.Tensor:
        """
        :param states: (m, d)
        :param inputs: (m, p)
        :return: the inputs and friction's own, (m, p + k)
        """
        return th.cat([inputs, self(states, inputs)], dim=1)

    def slopes(self, states: th.Tensor, inputs: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """Derivatives with respect to the states, (m, k, d), and to the inputs, (m, k, p)."""
        steep = ((1.0 - self(states, inputs).square()) / self.size)[..., None]
        sines, cosines = states.sin()[:, None], states.cos()[:, None]
        return steep * (self.of_states + self.of_sines * cosines - self.of_cosines * sines), steep * self.of_inputs

    def in_numpy(self) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        """The same function of arrays."""
        size, constant, of_states, of_sines, of_cosines, of_inputs = (part.cpu().numpy().T for part in self._parts)
        goes_round = bool(of_sines.any() or of_cosines.any())

        def levels(states: np.ndarray, inputs: np.ndarray) -> np.ndarray:
            speed = constant + states @ of_states + inputs @ of_inputs
            if goes_round:
                speed += np.sin(states) @ of_sines + np.cos(states) @ of_cosines
            return np.tanh(speed / size)

        return levels
