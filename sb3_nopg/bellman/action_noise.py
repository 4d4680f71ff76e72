"""Draws for the integral over what a stochastic policy may do at a state."""

import torch as th


def independent_normals(shape: tuple[int, int, int], generator: th.Generator) -> th.Tensor:
    """
    As the paper has it.

    :param shape: states, draws at each, dimensions: (m, a, d_a)
    :param generator: to draw from
    :return: standard normal, (m, a, d_a)
    """
    return th.randn(shape, generator=generator, dtype=th.float64)


def spread_normals(shape: tuple[int, int, int], generator: th.Generator) -> th.Tensor:
    """
    At every state one draw from each of a equally probable parts of every dimension, by chance in which order: a Latin
    hypercube. Each draw by itself is standard normal, so that means over draws estimate the same integral; those of smooth
    functions err far less.

    :param shape: states, draws at each, dimensions: (m, a, d_a)
    :param generator: to draw from
    :return: standard normal, (m, a, d_a)
    """
    part = th.rand(shape, generator=generator, dtype=th.float64).argsort(dim=1)
    within = th.rand(shape, generator=generator, dtype=th.float64)
    # The quantile of zero is infinitely far away.
    return th.special.ndtri(((part + within) / shape[1]).clamp_(min=th.finfo(th.float64).tiny))
