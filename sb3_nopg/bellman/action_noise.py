"""Draws for the integral over what a stochastic policy may do at a state."""

import torch as th

_LEAST, _MOST = 2.0**-54, 1.0 - 2.0**-53


def independent_normals(shape: tuple[int, int, int], generator: th.Generator, dtype: th.dtype) -> th.Tensor:
    """
    As the paper has it.

    :param shape: states, draws at each, dimensions: (m, a, d_a)
    :param generator: to draw from
    :param dtype: of the result
    :return: standard normal, (m, a, d_a)
    """
    return th.randn(shape, generator=generator, dtype=dtype)


def spread_normals(shape: tuple[int, int, int], generator: th.Generator, dtype: th.dtype) -> th.Tensor:
    """
    At every state one draw from each of a equally probable parts of every dimension, by chance in which order: a Latin
    hypercube. Each draw by itself is standard normal, so that means over draws estimate the same integral. They err less as
    far as a function is smooth and a sum of functions of one dimension each; where dimensions matter only together, they do
    not.

    :param shape: states, draws at each, dimensions: (m, a, d_a)
    :param generator: to draw from
    :param dtype: of the result
    :return: standard normal, (m, a, d_a)
    """
    part = th.rand(shape, generator=generator, dtype=th.float64).argsort(dim=1)
    within = th.rand(shape, generator=generator, dtype=th.float64)
    # The quantiles of zero and one are infinitely far away.
    return th.special.ndtri(((part + within) / shape[1]).clamp_(_LEAST, _MOST)).to(dtype)
