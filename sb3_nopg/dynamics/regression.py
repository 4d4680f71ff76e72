"""
Local affine regression: what a step changes, and what it earns, as an affine function of state and action around a state.

At a state x, samples are weighted by a kernel on **states only**, K((x_j − x)/h), or on those coordinates of states alone
that bend the system, and a ridge regression on (1, x_j − x, u_j) gives

    f̂(y, u) = value(x) + state_slope(x) (y − x) + action_slope(x) u

Because the weights do not see the action, all three are functions of the state alone, computed once for each. What a
neighbourhood cannot tell (a direction in which nothing varies there) is taken from one regression over all data, towards
which the ridge shrinks: on a single demonstrated curve, actions follow from states, and only the whole tells what they do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import scipy
import torch as th

from sb3_nopg.dynamics.affine import LEAST_RIDGE, AffineMaps, AffineRegression, Samples, joined, spread_of

N_NEIGHBORS = 100
# Of standardised inputs: for a state's slope times h², the spread of states under the kernel.
_STATE_RIDGE, _ACTION_RIDGE = 1e-4, 1e-3
# However narrow the kernel, so many samples per coefficient have a say.
_SAMPLES_A_COEFFICIENT = 2
# Queries solved at one time, and numbers kept for them where several bandwidths share them: 32 MiB.
_CHUNK, _MOST_PRODUCTS = 2000, 2**22


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


def targets_of_each(kernels: Sequence[Kernel]) -> dict[Kernel, list[int]]:
    """
    :param kernels: of each target
    :return: the targets of each kernel
    """
    return {kernel: [number for number, other in enumerate(kernels) if other == kernel] for kernel in dict.fromkeys(kernels)}
