"""How far each regression looks around, and at which coordinates: as far, and at as few, as left-out episodes allow."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch as th

from sb3_nopg.dynamics.coordinates import Coordinates
from sb3_nopg.dynamics.cross_validation import share_unexplained, widest_good
from sb3_nopg.dynamics.prepared import Inputs, Prepared
from sb3_nopg.dynamics.regression import Form, Kernel

# A coordinate is taken out of the kernel where predictions become no worse than by this factor.
_AS_GOOD = 1.02
# Share of a coordinate's change that no kernel of its own is worth.
_NOT_WORTH_A_KERNEL = 1e-6


def choose_kernels(
    data: Prepared, inputs: Inputs, widths: tuple[float, ...], form: Form, errors: th.Tensor
) -> tuple[Kernel, ...]:
    """
    :param data: recorded transitions
    :param inputs: of the regression
    :param widths: to choose from
    :param form: of the regression over all samples
    :param errors: share that kernels which look at all coordinates leave unexplained, at each width, of each coordinate
    :return: kernel of each coordinate's change
    """
    # One affine model goes on beyond the data: where it does nearly as well for all together, none is local by itself.
    if math.isinf(widths[widest_good(errors.mean(dim=1), widths)]):
        return (Kernel(math.inf, form),) * errors.shape[1]

    @cache
    def errors_without(everywhere: tuple[int, ...]) -> th.Tensor:
        return share_unexplained(data, inputs, widths, form=replace(form, everywhere=everywhere))

    def choose_for(target: int) -> Kernel:
        everywhere, left = choose_everywhere(
            data.coordinates,
            widths,
            errors[:, target],
            lambda without: errors_without(without)[:, target],
            _NOT_WORTH_A_KERNEL,
        )
        which = widest_good(left, widths, _NOT_WORTH_A_KERNEL)
        return Kernel(widths[which], form if math.isinf(widths[which]) else replace(form, everywhere=everywhere))

    return tuple(choose_for(target) for target in range(errors.shape[1]))


def choose_everywhere(
    coordinates: Coordinates,
    widths: tuple[float, ...],
    errors: th.Tensor,
    errors_without: Callable[[tuple[int, ...]], th.Tensor],
    tolerance: float = 0.0,
) -> tuple[tuple[int, ...], th.Tensor]:
    """
    Coordinates that the kernel need not look at, and what is unexplained without them at each width.

    A system that bends with the angle of a pole alone is the same wherever the cart is: samples from everywhere tell of it.

    :param coordinates: of the states
    :param widths: of the kernel
    :param errors: what is unexplained by a kernel that looks at all coordinates, at each width
    :param errors_without: the same of one that does not look at some
    :param tolerance: that is not worth looking for
    """
    straight = [number for number, bent in enumerate(coordinates.bent.tolist()) if not bent]
    chosen: tuple[int, ...] = ()
    # One that looks at nothing is one affine model, which is among the widths, or one formula, which is not wanted alone.
    while len(chosen) < coordinates.dim - 1 and not math.isinf(widths[widest_good(errors, widths)]):
        tried = {number: errors_without(tuple(sorted((*chosen, number)))) for number in straight if number not in chosen}
        if not tried:
            break
        best = min(tried, key=lambda number: float(tried[number].min()))
        if float(tried[best].min()) > _AS_GOOD * float(errors.min()) + tolerance:
            break
        chosen, errors = tuple(sorted((*chosen, best))), tried[best]
    return chosen, errors
