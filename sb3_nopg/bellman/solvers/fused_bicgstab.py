"""
An iteration of BiCGSTAB by Triton kernels: five beside the products and the preconditioner, where torch needs about thirty.
Its twin in torch is :func:`sb3_nopg.bellman.solvers.bicgstab.iterate`.

A dot product ends in a number for each program that made a part of it, in float64 whatever the vectors are in: that costs
nothing where all time goes into reading them, and rounding then does not depend on how they were divided. The next kernel's
programs each add these few hundred up for themselves, in the same order, which is quicker than a kernel in between. So the
same vectors always give the same numbers.
"""

import torch as th

from sb3_nopg.bellman.solvers.bicgstab import Vectors
from sb3_nopg.bellman.solvers.solution import LinearMap

# Which also says whether this can be used.
from sb3_nopg.common.gpu_kernels import tl, triton

# Entries of each vector that a program takes at a time, and the threads that share them: eight for each thread.
_BLOCK, _WARPS = 2048, 8
# A dot product's parts: on a large GPU all of these programs run at once.
_PARTS = 512


class Numbers:
    """
    What the kernels pass on to each other.

    :param like: a vector on the right device
    """

    def __init__(self, like: th.Tensor):
        self.kept = th.zeros(5, dtype=th.float64, device=like.device)
        # Parts of two dot products at a time: while the second two are made, the first are still being read.
        self.first_parts, self.second_parts = th.zeros(2, 2, _PARTS, dtype=th.float64, device=like.device)

    @property
    def told(self) -> th.Tensor:
        """Norm of the residual, two step lengths, and product of shadow and residual, (4,)."""
        return self.kept[:4]


def iterate(operator: LinearMap, preconditioner: LinearMap | None, vectors: Vectors, numbers: Numbers) -> None:
    """
    One iteration. No number comes to the processor.

    :param operator: x ↦ A x
    :param preconditioner: x ↦ M⁻¹ x; None for x itself
    :param vectors: changed in place
    :param numbers: changed in place
    """
    residual, shadow, direction = vectors.residual, vectors.shadow, vectors.direction
    n = len(residual)
    all_at_once = (triton.cdiv(n, _BLOCK),)
    in_parts = (min(_PARTS, *all_at_once),)
    sizes = {"n": n, "PARTS": _PARTS, "BLOCK": _BLOCK, "num_warps": _WARPS}
    kept, first, second = numbers.kept, numbers.first_parts, numbers.second_parts
    step = direction if preconditioner is None else preconditioner(direction)
    image = operator(step).contiguous()
    # Triton starts on the current device, wherever the tensors are.
    with th.cuda.device_of(residual):
        _dots[in_parts](image, shadow, first, **sizes)
        _half_step[all_at_once](residual, image, first, kept, **sizes)
    half_step = residual if preconditioner is None else preconditioner(residual)
    stabilizer = operator(half_step).contiguous()
    with th.cuda.device_of(residual):
        _dots[in_parts](stabilizer, residual, first, **sizes)
        _whole_step[in_parts](vectors.value, residual, shadow, step, half_step, stabilizer, first, second, kept, **sizes)
        _turn[all_at_once](direction, residual, image, second, kept, **sizes)


if triton is not None:
    # Places of the numbers that are kept. Rho has two: all programs read the last one, while one of them writes the next.
    NORM, ALPHA, OMEGA, RHO, LAST_RHO = map(tl.constexpr, range(5))

    @triton.jit
    def _ratio(numerator, denominator):  # type: ignore[no-untyped-def]
        # Zero where the denominator is.
        is_zero = denominator == 0.0
        return tl.where(is_zero, 0.0, numerator / tl.where(is_zero, 1.0, denominator))

    @triton.jit
    def _total(parts, PARTS: tl.constexpr):  # type: ignore[no-untyped-def]
        return tl.sum(tl.load(parts + tl.arange(0, PARTS)), axis=0)

    @triton.jit
    def _dots(x, y, parts, n, PARTS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        """Parts of x·y and x·x."""
        program, lanes = tl.program_id(0), tl.arange(0, BLOCK)
        product, square = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
        for start in range(program * BLOCK, n, tl.num_programs(0) * BLOCK):
            entry = start + lanes
            one = tl.load(x + entry, mask=entry < n, other=0.0).to(tl.float64)
            product += one * tl.load(y + entry, mask=entry < n, other=0.0).to(tl.float64)
            square += one * one
        tl.store(parts + program, tl.sum(product, axis=0))
        tl.store(parts + PARTS + program, tl.sum(square, axis=0))

    @triton.jit
    def _half_step(residual, image, parts, kept, n, PARTS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        """From image·shadow to α, and the residual after α alone."""
        entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        before = tl.load(residual + entry, mask=entry < n, other=0.0)
        change = tl.load(image + entry, mask=entry < n, other=0.0)
        alpha = _ratio(tl.load(kept + RHO), _total(parts, PARTS))
        tl.store(residual + entry, before - alpha.to(before.dtype) * change, mask=entry < n)
        if tl.program_id(0) == 0:
            tl.store(kept + ALPHA, alpha)

    @triton.jit
    def _whole_step(  # type: ignore[no-untyped-def]
        value,
        residual,
        shadow,
        step,
        half_step,
        stabilizer,
        parts,
        next_parts,
        kept,
        n,
        PARTS: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        """From stabilizer·residual and stabilizer·stabilizer to ω, the next x, its residual, and parts of what that is for."""
        program, lanes = tl.program_id(0), tl.arange(0, BLOCK)
        alpha, omega = tl.load(kept + ALPHA), _ratio(_total(parts, PARTS), _total(parts + PARTS, PARTS))
        product, square = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
        for start in range(program * BLOCK, n, tl.num_programs(0) * BLOCK):
            entry = start + lanes
            there = entry < n
            x, r = tl.load(value + entry, mask=there, other=0.0), tl.load(residual + entry, mask=there, other=0.0)
            long, short = alpha.to(x.dtype), omega.to(x.dtype)
            # Where there is no preconditioner half_step is the residual itself: read before it is written.
            x += long * tl.load(step + entry, mask=there, other=0.0)
            x += short * tl.load(half_step + entry, mask=there, other=0.0)
            r -= short * tl.load(stabilizer + entry, mask=there, other=0.0)
            tl.store(value + entry, x, mask=there)
            tl.store(residual + entry, r, mask=there)
            wide = r.to(tl.float64)
            product += wide * tl.load(shadow + entry, mask=there, other=0.0).to(tl.float64)
            square += wide * wide
        tl.store(next_parts + program, tl.sum(product, axis=0))
        tl.store(next_parts + PARTS + program, tl.sum(square, axis=0))
        if program == 0:
            tl.store(kept + OMEGA, omega)
            tl.store(kept + LAST_RHO, tl.load(kept + RHO))

    @triton.jit
    def _turn(direction, residual, image, parts, kept, n, PARTS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        """From residual·shadow and residual·residual to the next direction."""
        entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        there = entry < n
        before, r = tl.load(direction + entry, mask=there, other=0.0), tl.load(residual + entry, mask=there, other=0.0)
        change = tl.load(image + entry, mask=there, other=0.0)
        rho, omega = _total(parts, PARTS), tl.load(kept + OMEGA)
        growth = _ratio(_ratio(rho, tl.load(kept + LAST_RHO)) * tl.load(kept + ALPHA), omega)
        after = r + growth.to(r.dtype) * (before - omega.to(r.dtype) * change)
        tl.store(direction + entry, after, mask=there)
        if tl.program_id(0) == 0:
            tl.store(kept + RHO, rho)
            tl.store(kept + NORM, tl.sqrt(_total(parts + PARTS, PARTS)))
