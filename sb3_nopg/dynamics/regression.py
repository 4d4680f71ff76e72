"""
Local affine regression: what a step changes, and what it earns, as an affine function of state and action around a state.

At a state x, samples are weighted by a kernel on **states only**, K((x_j − x)/h), or on those coordinates of states alone
that bend the system, and a ridge regression on (1, x_j − x, u_j) gives

    f̂(y, u) = value(x) + state_slope(x) (y − x) + action_slope(x) u

Because the weights do not see the action, all three are functions of the state alone, computed once for each. What a
neighbourhood cannot tell (a direction in which nothing varies there) is taken from one regression over all data, towards
which the ridge shrinks: on a single demonstrated curve, actions follow from states, and only the whole tells what they do.
Where angles go far, one formula for the whole has products with their sines and cosines: a hanging pole, pushed by a signal,
then tells what a push does to an upright one that nobody ever let fall.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import scipy
import torch as th

from sb3_nopg.dynamics.coordinates import Coordinates

N_NEIGHBORS = 100
# Of standardised inputs: for a state's slope times h², the spread of states under the kernel.
_STATE_RIDGE, _ACTION_RIDGE, LEAST_RIDGE = 1e-4, 1e-3, 1e-8
# However narrow the kernel, so many samples per coefficient have a say.
_SAMPLES_A_COEFFICIENT = 2
# Queries solved at one time, and numbers kept for them where several bandwidths share them: 32 MiB.
_CHUNK, _MOST_PRODUCTS = 2000, 2**22


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
class Form:
    """
    Of a regression.

    :param everywhere: coordinates that enter it and not its kernel: in these, one affine function goes for all
    :param ridge: of standardised inputs, for all samples. Where earlier steps enter, velocities and changes of places say
        nearly the same: without it, large coefficients that hold each other would answer to every bit of noise.
    :param turning: whether the regression over all samples has products with sines and cosines of angles that go far, and
        alone tells what inputs do
    """

    everywhere: tuple[int, ...] = ()
    ridge: float = LEAST_RIDGE
    turning: bool = False


@dataclass(frozen=True)
class Kernel:
    """
    Of a target's regression.

    :param bandwidth: h, in standard deviations of each coordinate; infinite for one affine function of all samples
    :param form: which coordinates it looks at, and the ridge
    """

    bandwidth: float
    form: Form

    @property
    def is_affine(self) -> bool:
        """Whether there is one affine function of all samples, and nothing local."""
        return math.isinf(self.bandwidth)


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


class LocalAffineRegression:
    """
    :param samples: to fit
    :param bandwidth: h, in standard deviations of each coordinate; infinite for one affine function of all samples
    :param form: what the kernel looks at, and how much the regression over all samples is shrunk
    """

    def __init__(self, samples: Samples, bandwidth: float = math.inf, form: Form | None = None):
        form = form or Form()
        self.samples, self.bandwidth = samples, bandwidth
        self.whole, self._turning = AffineRegression(samples, form.ridge, form.turning), form.turning
        self.scale = spread_of(samples.states)
        self._kernel_scale = self.scale.clone()
        self._kernel_scale[[*form.everywhere]] = math.inf
        self._input_scale = spread_of(samples.inputs)
        self._input_mean = samples.inputs.mean(dim=0)
        self._residuals = samples.targets - self.whole.predict(samples.states, samples.inputs)
        self.n_coefficients = 1 + samples.states.shape[1] + samples.inputs.shape[1]

    @cached_property
    def _tree(self) -> "scipy.spatial.cKDTree":
        # One affine function needs none.
        return scipy.spatial.cKDTree(self.samples.coordinates.embed(self.samples.states, self._kernel_scale).numpy())

    def maps_at(self, states: th.Tensor) -> AffineMaps:
        """
        :param states: (m, d)
        """
        return self.maps_at_each(states, (self.bandwidth,))[0]

    def maps_at_each(self, states: th.Tensor, bandwidths: tuple[float, ...]) -> list[AffineMaps]:
        """
        :param states: (m, d)
        :param bandwidths: in the place of the own one, to do it for each
        """
        n_products = N_NEIGHBORS * self.n_coefficients * (self.n_coefficients + self._residuals.shape[1])
        chunk = _CHUNK if len(bandwidths) == 1 else max(1, min(_CHUNK, _MOST_PRODUCTS // n_products))
        chunks = [self._maps_at(part, bandwidths) for part in states.split(chunk)]
        return [
            AffineMaps(*(th.cat([getattr(part[number], name) for part in chunks]) for name in AffineMaps.__dataclass_fields__))
            for number in range(len(bandwidths))
        ]

    def _maps_at(self, states: th.Tensor, bandwidths: tuple[float, ...]) -> list[AffineMaps]:
        samples, whole = self.samples, self.whole.maps_at(states)
        finite = [bandwidth for bandwidth in bandwidths if not math.isinf(bandwidth)]
        if not finite:
            return [whole] * len(bandwidths)
        k = min(N_NEIGHBORS, len(samples))
        _, found = self._tree.query(samples.coordinates.embed(states, self._kernel_scale).numpy(), k=[*range(1, k + 1)])
        nearest = th.from_numpy(found)
        way = samples.coordinates.difference(samples.states[nearest], states[:, None]) / self.scale
        squared = (way * self.scale / self._kernel_scale).square().sum(dim=-1)
        inputs = (samples.inputs[nearest] - self._input_mean) / self._input_scale
        if self._turning:
            # Where actions follow from states, a neighbourhood cannot tell the one's effect from the other's.
            inputs = th.zeros_like(inputs)
        regressors = th.cat([th.ones_like(squared)[..., None], way, inputs], dim=-1)  # (m, k, 1 + d + p)
        # The ordering of the embedding and of differences may part a little on a circle.
        enough = squared.sort(dim=1).values[:, min(_SAMPLES_A_COEFFICIENT * self.n_coefficients, k) - 1, None]
        # Squared, of each state and bandwidth.
        widths = th.maximum(enough / 2.25, enough.new_tensor(finite).square())  # (m, w)
        weights = th.softmax(-0.5 * squared[:, None] / widths[..., None], dim=2)  # (m, w, k)
        corrected = iter(self._corrected(whole, widths, _moments(weights, regressors, self._residuals[nearest])))
        return [whole if math.isinf(bandwidth) else next(corrected) for bandwidth in bandwidths]

    def _corrected(self, whole: AffineMaps, widths: th.Tensor, moments: th.Tensor) -> list[AffineMaps]:
        """
        What the neighbourhood says beyond the whole.

        :param whole: what all samples say, at m states
        :param widths: of the kernel, squared, (m, w)
        :param moments: of regressors with regressors and with what is left of the targets, (m, w, 1 + d + p, 1 + d + p + t)
        :return: for each of the w
        """
        d, p = whole.state_slope.shape[2], whole.action_slope.shape[2]
        of_states = th.where(self._kernel_scale.isinf(), 1.0, widths[..., None])
        of_one, of_inputs = widths.new_zeros(*widths.shape, 1), widths.new_full((*widths.shape, p), _ACTION_RIDGE)
        ridge = th.cat([of_one, _STATE_RIDGE * of_states, of_inputs], dim=2)
        of_regressors, of_targets = moments.split([1 + d + p, moments.shape[3] - (1 + d + p)], dim=3)
        fits = th.linalg.solve(of_regressors + th.diag_embed(ridge), of_targets).mT  # (m, w, t, 1 + d + p)
        action_slopes = fits[..., 1 + d :] / self._input_scale
        values = fits[..., 0] - action_slopes @ self._input_mean
        state_slopes = fits[..., 1 : 1 + d] / self.scale
        return [
            AffineMaps(whole.value + value, whole.state_slope + state_slope, whole.action_slope + action_slope)
            for value, state_slope, action_slope in zip(
                values.unbind(1), state_slopes.unbind(1), action_slopes.unbind(1), strict=True
            )
        ]


def _moments(weights: th.Tensor, regressors: th.Tensor, residuals: th.Tensor) -> th.Tensor:
    """
    :param weights: of k samples around each of m states, for each of w widths, (m, w, k)
    :param regressors: (m, k, g)
    :param residuals: of the targets, (m, k, t)
    :return: weighted sums of regressors times regressors and residuals, (m, w, g, g + t)
    """
    both = th.cat([regressors, residuals], dim=2)
    if weights.shape[1] == 1:
        return ((weights.mT * regressors).mT @ both)[:, None]
    # Products are made once for all widths: their sums are then one large product of matrices and not many small ones.
    products = regressors[..., None] * both[..., None, :]  # (m, k, g, g + t)
    return (weights @ products.flatten(2)).unflatten(2, products.shape[2:])


class Regressions:
    """
    Local affine regressions of several targets, each with its own kernel: what bends a cart's motion need not bend its pole's.

    :param samples: to fit
    :param kernels: of each target
    """

    def __init__(self, samples: Samples, kernels: Sequence[Kernel]):
        self.samples, self.kernels, self.scale = samples, tuple(kernels), spread_of(samples.states)
        self._parts = [
            (columns, LocalAffineRegression(samples.of_targets(columns), kernel.bandwidth, kernel.form))
            for kernel, columns in targets_of_each(kernels).items()
        ]

    def maps_at(self, states: th.Tensor, targets: Sequence[int] | None = None) -> AffineMaps:
        """
        :param states: (m, d)
        :param targets: numbers of them; None for all
        """
        wanted, found = range(len(self.kernels)) if targets is None else targets, dict[int, AffineMaps]()
        for columns, regression in self._parts:
            if not set(columns).isdisjoint(wanted):
                maps = regression.maps_at(states)
                found.update({column: maps.of_target(place) for place, column in enumerate(columns)})
        return joined([found[number] for number in wanted])


def joined(maps: Sequence[AffineMaps]) -> AffineMaps:
    """
    :param maps: at the same states, of some targets each
    :return: of all, one after another
    """
    return AffineMaps(*(th.cat([getattr(part, name) for part in maps], dim=1) for name in AffineMaps.__dataclass_fields__))


def targets_of_each(kernels: Sequence[Kernel]) -> dict[Kernel, list[int]]:
    """
    :param kernels: of each target
    :return: the targets of each kernel
    """
    return {kernel: [number for number, other in enumerate(kernels) if other == kernel] for kernel in dict.fromkeys(kernels)}


def spread_of(values: th.Tensor) -> th.Tensor:
    """Standard deviation of each column, one where there is none."""
    if len(values) < 2:
        return values.new_ones(values.shape[1])
    spread = values.std(dim=0)
    return th.where(spread > 1e-12 * values.abs().amax(dim=0).clamp_min(1e-12), spread, th.ones_like(spread))
