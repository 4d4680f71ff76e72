"""
Affine functions of state and action: many, one around each of many states, and one for all that a regression over all samples
finds.

Where angles go far, the one has their sines and cosines instead, and perhaps products with these: a hanging pole, pushed by a
signal, then tells what a push does to an upright one that nobody ever let fall.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch as th

from sb3_nopg.dynamics.coordinates import Coordinates

#: of standardised inputs
LEAST_RIDGE = 1e-8


@dataclass(frozen=True)
class Samples:
    """
    What regressions are made of.

    :param coordinates: of the states
    :param states: x, (n, d)
    :param inputs: u, (n, p)
    :param targets: (n, t)
    """

    coordinates: Coordinates
    states: th.Tensor
    inputs: th.Tensor
    targets: th.Tensor

    def __len__(self) -> int:
        return len(self.states)

    def rows(self, chosen: th.Tensor) -> "Samples":
        """
        :param chosen: numbers or flags
        """
        return replace(self, states=self.states[chosen], inputs=self.inputs[chosen], targets=self.targets[chosen])

    def of_targets(self, columns: list[int]) -> "Samples":
        """
        :param columns: of the targets
        """
        return replace(self, targets=self.targets[:, columns])


@dataclass(frozen=True)
class AffineMaps:
    """
    An affine function for each of m states z, of t targets: f(x, u) = value + state_slope (x − z) + action_slope u.

    :param value: (m, t)
    :param state_slope: (m, t, d)
    :param action_slope: (m, t, p)
    """

    value: th.Tensor
    state_slope: th.Tensor
    action_slope: th.Tensor

    def at_own_states(self, inputs: th.Tensor) -> th.Tensor:
        """
        :param inputs: u, one for each map, (m, p)
        :return: f(z, u), (m, t)
        """
        return self.value + (self.action_slope @ inputs[..., None])[..., 0]

    def of_target(self, number: int) -> "AffineMaps":
        """
        :param number: of the target
        """
        column = slice(number, number + 1)
        return AffineMaps(self.value[:, column], self.state_slope[:, column], self.action_slope[:, column])

    def to(self, device: th.device) -> "AffineMaps":
        """The same on a device."""
        return AffineMaps(self.value.to(device), self.state_slope.to(device), self.action_slope.to(device))


def joined(maps: Sequence[AffineMaps]) -> AffineMaps:
    """
    :param maps: at the same states, of some targets each
    :return: of all, one after another
    """
    return AffineMaps(*(th.cat([getattr(part, name) for part in maps], dim=1) for name in AffineMaps.__dataclass_fields__))


@dataclass(frozen=True)
class AffineFunction:
    """
    Of states x and inputs u: constant + A x + B sin x + C cos x + D u, t targets.

    :param constant: (t,)
    :param of_states: A, (t, d)
    :param of_sines: B, (t, d)
    :param of_cosines: C, (t, d)
    :param of_inputs: D, (t, p)
    """

    constant: th.Tensor
    of_states: th.Tensor
    of_sines: th.Tensor
    of_cosines: th.Tensor
    of_inputs: th.Tensor


class AffineRegression:
    """
    One affine function of all samples, with sine and cosine in the place of an angle that goes far.

    :param samples: to fit
    :param ridge: of standardised inputs
    :param turning: whether its slopes in all else turn with such angles: s + s' sin x + s'' cos x, as a rigid body's do
    """

    def __init__(self, samples: Samples, ridge: float = LEAST_RIDGE, turning: bool = False):
        self._coordinates, self._turning = samples.coordinates, turning
        self._mean, self._scale = samples.states.mean(dim=0), spread_of(samples.states)
        self._input_mean, self._input_scale = samples.inputs.mean(dim=0), spread_of(samples.inputs)
        features, target_scale = self.features(samples.states, samples.inputs), spread_of(samples.targets)
        moment = features.T @ features / len(features)
        shrink = ridge * th.eye(len(moment), dtype=moment.dtype)
        shrink[0, 0] = 0.0
        coefficients = th.linalg.solve(moment + shrink, features.T @ (samples.targets / target_scale) / len(features))
        self.coefficients = coefficients * target_scale  # (g, t)

    @property
    def _bent(self) -> th.Tensor:
        return self._coordinates.bent

    def features(self, states: th.Tensor, inputs: th.Tensor) -> th.Tensor:
        """1, straight coordinates, sine and cosine of bent ones, inputs; products of these with those: (n, g)."""
        bent = self._bent
        sines, cosines = states[:, bent].sin(), states[:, bent].cos()
        straight, inputs = self._standardised(states, inputs)
        columns = [states.new_ones(len(states), 1), straight, sines, cosines, inputs]
        if self._turning:
            turned = th.cat([straight, inputs], dim=1)
            columns += [(wave[..., None] * turned[:, None]).flatten(1) for wave in (sines, cosines)]
        return th.cat(columns, dim=1)

    def _standardised(self, states: th.Tensor, inputs: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        straight = ~self._bent
        return (
            (states[:, straight] - self._mean[straight]) / self._scale[straight],
            (inputs - self._input_mean) / self._input_scale,
        )

    def predict(self, states: th.Tensor, inputs: th.Tensor) -> th.Tensor:
        """
        :param states: (n, d)
        :param inputs: (n, p)
        :return: (n, t)
        """
        return self.features(states, inputs) @ self.coefficients

    def unscaled(self) -> AffineFunction:
        """The same in the units of states, inputs and targets."""
        bent, slopes = self._bent, self.coefficients.T  # (t, g)
        n_bent, n_straight = int(bent.sum()), int((~bent).sum())
        constant, straight, sines, cosines, inputs = slopes.split(
            [1, n_straight, n_bent, n_bent, len(self._input_scale)], dim=1
        )
        straight, inputs = straight / self._scale[~bent], inputs / self._input_scale
        of_states, of_sines, of_cosines = (slopes.new_zeros(len(slopes), len(bent)) for _ in range(3))
        of_states[:, ~bent], of_sines[:, bent], of_cosines[:, bent] = straight, sines, cosines
        at_zero = constant[:, 0] - straight @ self._mean[~bent] - inputs @ self._input_mean
        return AffineFunction(at_zero, of_states, of_sines, of_cosines, inputs)

    def maps_at(self, states: th.Tensor) -> AffineMaps:
        """
        Its tangents.

        :param states: (m, d)
        """
        bent, n, p = self._bent, len(states), len(self._input_scale)
        n_bent, n_straight = int(bent.sum()), int((~bent).sum())
        slopes = self.coefficients[1:].T  # (t, g - 1)
        state_slope = states.new_zeros(n, slopes.shape[0], states.shape[1])
        state_slope[..., ~bent] = slopes[:, :n_straight] / self._scale[~bent]
        if n_bent:
            of_sine, of_cosine = (
                slopes[:, n_straight : n_straight + n_bent],
                slopes[:, n_straight + n_bent : n_straight + 2 * n_bent],
            )
            angle = states[:, None, bent]
            state_slope[..., bent] = of_sine * angle.cos() - of_cosine * angle.sin()
        of_inputs = slopes[:, n_straight + 2 * n_bent : n_straight + 2 * n_bent + p]
        action_slope = (of_inputs / self._input_scale).expand(n, -1, p).clone()
        if self._turning:
            self._turn(states, state_slope, action_slope)
        return AffineMaps(self.predict(states, states.new_zeros(n, p)), state_slope, action_slope)

    def _turn(self, states: th.Tensor, state_slope: th.Tensor, action_slope: th.Tensor) -> None:
        """
        Add what the products say to tangents where no input is.

        :param states: (m, d)
        :param state_slope: (m, t, d)
        :param action_slope: (m, t, p)
        """
        bent, n_inputs = self._bent, len(self._input_scale)
        sines, cosines = states[:, bent].sin(), states[:, bent].cos()
        turned = th.cat(self._standardised(states, states.new_zeros(len(states), n_inputs)), dim=1)  # (m, r)
        n_products = 2 * sines.shape[1] * turned.shape[1]
        products = self.coefficients[len(self.coefficients) - n_products :].T  # (t, 2 b r)
        by_sine, by_cosine = products.unflatten(1, (2, sines.shape[1], turned.shape[1])).unbind(1)  # (t, b, r)
        slopes = th.einsum("mb,tbr->mtr", sines, by_sine) + th.einsum("mb,tbr->mtr", cosines, by_cosine)
        of_straight, of_inputs = slopes.split([turned.shape[1] - n_inputs, n_inputs], dim=2)
        state_slope[..., ~bent] += of_straight / self._scale[~bent]
        of_sine, of_cosine = (th.einsum("tbr,mr->mtb", by, turned) for by in (by_sine, by_cosine))
        state_slope[..., bent] += of_sine * cosines[:, None] - of_cosine * sines[:, None]
        action_slope += of_inputs / self._input_scale


def spread_of(values: th.Tensor) -> th.Tensor:
    """Standard deviation of each column, one where there is none."""
    if len(values) < 2:
        return values.new_ones(values.shape[1])
    spread = values.std(dim=0)
    return th.where(spread > 1e-12 * values.abs().amax(dim=0).clamp_min(1e-12), spread, th.ones_like(spread))
