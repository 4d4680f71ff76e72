"""
Triton kernels for a GPU: what torch does in several passes over memory, done in one. Each has a twin in torch, which the tests
compare it with and which is used everywhere else.

    bellman_rows         TransitionMatrix.bellman_operator, in float32
    kernel_weights       Support.kernel_weights
    action_covariance    kernels.weights.action_covariance
    sum_members          partition.sum_members
    add_by_cell          CoarseModel.precondition's second half
    multiply             its product with the dense inverse, kept in bfloat16

:mod:`sb3_nopg.bellman.solvers.fused_bicgstab` has the solver's.
"""

import logging
import math
import os
from functools import cache

import torch as th

try:
    if th.cuda.device_count() == 0 and "TRITON_INTERPRET" not in os.environ:
        raise ImportError("there is nothing to use it on, and it takes a quarter of a second to import")
    import triton
    import triton.language as tl
except ImportError:  # comes with torch where there is a GPU to use it on
    triton = tl = None

_logger = logging.getLogger(__name__)
# Entries that one warp of threads works on at a time.
_ENTRIES_A_WARP = 512
# Longer rows would not fit the registers.
_MAX_ROW = 4096
# Entries that a program takes where each is by itself.
_BLOCK = 1024
# Rows and columns of a dense matrix that a program takes at a time.
_DENSE_ROWS, _DENSE_COLUMNS = 8, 512


def usable(like: th.Tensor, row_length: int) -> bool:
    """
    :param like: a tensor on the device in question
    :param row_length: entries of a row
    """
    if triton is None or not like.is_cuda or not 0 < row_length <= _MAX_ROW:
        return False
    # Kernels leave no trace for automatic differentiation.
    return not (th.is_grad_enabled() and like.requires_grad) and _works_on(like.device)


@cache
def _works_on(device: th.device) -> bool:
    """Triton may be there and yet unable to build anything, for want of a compiler."""
    try:
        values, columns = (th.zeros(1, 1, dtype=dtype, device=device) for dtype in (th.float32, th.int32))
        bellman_rows(values, columns, th.zeros(1, device=device), 0.5)
    except Exception as error:  # whatever it is, torch does the same work
        _logger.warning(
            "Triton does not work on %s, so that torch's own kernels are used, which take longer: %s", device, error
        )
        return False
    return True


def bellman_rows(values: th.Tensor, columns: th.Tensor, x: th.Tensor, gamma: float) -> th.Tensor:
    """
    In float32 only: Triton knows plain numbers like γ no better.

    :param values: of a matrix whose rows all have as many entries, (n, k)
    :param columns: of these, (n, k)
    :param x: (n,)
    :param gamma: discount
    :return: x − γ P̂ x, (n,)
    """
    n, k = values.shape
    result, x = th.empty(n, dtype=x.dtype, device=x.device), x.contiguous()
    rows, padded, grid, num_warps = _layout(n, k)
    # Triton starts on the current device, wherever the tensors are.
    with th.cuda.device_of(x):
        _bellman_rows[grid](values, columns, x, result, gamma, n, k, ROWS=rows, PADDED=padded, num_warps=num_warps)
    return result


def kernel_weights(
    log_state_kernel: th.Tensor, neighbor_actions: th.Tensor, actions: th.Tensor, pessimism: float = 0.0
) -> th.Tensor:
    """
    :param log_state_kernel: (m, k)
    :param neighbor_actions: divided by the bandwidth, (d_a, m, k)
    :param actions: divided by the bandwidth, (m, a, d_a)
    :param pessimism: κ
    :return: rows that sum to one, or with pessimism to M / (M + κ), (m, a, k)
    """
    (m, n_actions, d_a), k = actions.shape, log_state_kernel.shape[1]
    weights = actions.new_empty(m, n_actions, k)
    # As a tensor, for Triton would round a plain number to float32.
    log_pessimism = actions.new_full((1,), math.log(pessimism) if pessimism > 0.0 else -math.inf)
    rows, padded, grid, num_warps = _layout(m * n_actions, k)
    with th.cuda.device_of(actions):
        _kernel_weights[grid](
            log_state_kernel.contiguous(),
            neighbor_actions.contiguous(),
            actions.contiguous(),
            weights,
            log_pessimism,
            m,
            n_actions,
            k,
            D_A=d_a,
            ROWS=rows,
            PADDED=padded,
            num_warps=num_warps,
        )
    return weights


def action_covariance(weights: th.Tensor, indices: th.Tensor, values: th.Tensor, neighbor_actions: th.Tensor) -> th.Tensor:
    """
    :param weights: rows that sum to one, (m, a, k)
    :param indices: of each query's neighbours, (m, k)
    :param values: of the samples, (n,)
    :param neighbor_actions: divided by the bandwidth, (d_a, m, k)
    :return: for actions divided by the bandwidth, (m, a, d_a)
    """
    (m, n_actions, k), d_a = weights.shape, len(neighbor_actions)
    derivative = weights.new_empty(m, n_actions, d_a)
    rows, padded, grid, num_warps = _layout(m * n_actions, k)
    with th.cuda.device_of(weights):
        _action_derivative[grid](
            weights.contiguous(),
            indices.contiguous(),
            values.contiguous(),
            neighbor_actions.contiguous(),
            derivative,
            m,
            n_actions,
            k,
            D_A=d_a,
            ROWS=rows,
            PADDED=padded,
            num_warps=num_warps,
        )
    return derivative


def sum_members(x: th.Tensor, members: th.Tensor, is_member: th.Tensor) -> th.Tensor:
    """
    :param x: one number a point, (n,)
    :param members: as :meth:`sb3_nopg.kernels.partition.Partition.table` gives them, in 32 bits as well, (c, size)
    :param is_member: from the same method, (c, size)
    :return: the sum of each cell, (c,)
    """
    n_cells, size = members.shape
    sums, x = x.new_empty(n_cells), x.contiguous()
    rows, padded, grid, num_warps = _layout(n_cells, size)
    with th.cuda.device_of(x):
        _sum_members[grid](x, members, is_member, sums, n_cells, size, ROWS=rows, PADDED=padded, num_warps=num_warps)
    return sums


def add_by_cell(x: th.Tensor, by_cell: th.Tensor, cell: th.Tensor) -> th.Tensor:
    """
    :param x: one number a point, (n,)
    :param by_cell: what to add to it, (c,)
    :param cell: of each point, (n,)
    :return: (n,)
    """
    n, x = len(x), x.contiguous()
    result = th.empty_like(x)
    with th.cuda.device_of(x):
        _add_by_cell[(triton.cdiv(n, _BLOCK),)](x, by_cell.contiguous(), cell, result, n, BLOCK=_BLOCK)
    return result


def multiply(matrix: th.Tensor, x: th.Tensor) -> th.Tensor:
    """
    :param matrix: in any precision, which may be less than that of x, (m, n)
    :param x: (n,)
    :return: matrix · x in the precision of x, (m,)
    """
    m, n = matrix.shape
    result, matrix, x = x.new_empty(m), matrix.contiguous(), x.contiguous()
    with th.cuda.device_of(x):
        _multiply[(triton.cdiv(m, _DENSE_ROWS),)](matrix, x, result, m, n, ROWS=_DENSE_ROWS, COLUMNS=_DENSE_COLUMNS)
    return result


def _layout(n_rows: int, k: int) -> tuple[int, int, tuple[int], int]:
    """Rows that a program takes, their length up to a power of two, number of programs, and warps of each."""
    padded = triton.next_power_of_2(k)
    rows = max(1, _ENTRIES_A_WARP // padded)
    return rows, padded, (triton.cdiv(n_rows, rows),), max(1, padded // _ENTRIES_A_WARP)


if triton is not None:

    @triton.jit
    def _bellman_rows(values, columns, x, result, gamma, n, k, ROWS: tl.constexpr, PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        entry = tl.arange(0, PADDED)
        there = (row < n)[:, None] & (entry < k)[None, :]
        place = row[:, None].to(tl.int64) * k + entry[None, :]
        column = tl.load(columns + place, mask=there, other=0)
        product = tl.load(values + place, mask=there, other=0.0) * tl.load(x + column, mask=there, other=0.0)
        own = tl.load(x + row, mask=row < n, other=0.0)
        tl.store(result + row, (own - gamma * tl.sum(product, axis=1)).to(own.dtype), mask=row < n)

    @triton.jit
    def _kernel_weights(  # type: ignore[no-untyped-def]
        log_state_kernel,
        neighbor_actions,
        actions,
        weights,
        log_pessimism,
        m,
        n_actions,
        k,
        D_A: tl.constexpr,
        ROWS: tl.constexpr,
        PADDED: tl.constexpr,
    ):
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)  # of a query and one of its actions
        in_range = row < m * n_actions
        query = (row // n_actions).to(tl.int64)
        entry = tl.arange(0, PADDED)
        there = in_range[:, None] & (entry < k)[None, :]
        place = query[:, None] * k + entry[None, :]
        log_kernel = tl.load(log_state_kernel + place, mask=there, other=-float("inf"))
        for dimension in tl.static_range(D_A):
            action = tl.load(actions + row.to(tl.int64) * D_A + dimension, mask=in_range, other=0.0)
            neighbor = tl.load(neighbor_actions + tl.cast(m, tl.int64) * k * dimension + place, mask=there, other=0.0)
            difference = action[:, None] - neighbor
            log_kernel -= 0.5 * difference * difference
        # Relative to the largest, which keeps a far query normalised; of a row beyond the last nothing is kept.
        imaginary = tl.load(log_pessimism)
        largest = tl.maximum(tl.max(log_kernel, axis=1), imaginary)
        largest = tl.where(in_range, largest, 0.0)
        kernel = tl.exp(log_kernel - largest[:, None])
        total = tl.sum(kernel, axis=1) + tl.exp(imaginary - largest)
        kernel = kernel / tl.where(in_range, total, 1.0)[:, None]
        tl.store(weights + row[:, None].to(tl.int64) * k + entry[None, :], kernel, mask=there)

    @triton.jit
    def _action_derivative(  # type: ignore[no-untyped-def]
        weights,
        indices,
        values,
        neighbor_actions,
        derivative,
        m,
        n_actions,
        k,
        D_A: tl.constexpr,
        ROWS: tl.constexpr,
        PADDED: tl.constexpr,
    ):
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)  # of a query and one of its actions
        in_range = row < m * n_actions
        query = (row // n_actions).to(tl.int64)
        entry = tl.arange(0, PADDED)
        there = in_range[:, None] & (entry < k)[None, :]
        place = query[:, None] * k + entry[None, :]
        weight = tl.load(weights + row[:, None].to(tl.int64) * k + entry[None, :], mask=there, other=0.0)
        value = tl.load(values + tl.load(indices + place, mask=there, other=0), mask=there, other=0.0)
        # Values have a large common part, of which the first neighbour's rids the sums.
        first = tl.load(values + tl.load(indices + query * k, mask=in_range, other=0), mask=in_range, other=0.0)
        difference = value - first[:, None]
        advantage = weight * (difference - tl.sum(weight * difference, axis=1)[:, None])
        for dimension in tl.static_range(D_A):
            action = tl.load(neighbor_actions + tl.cast(m, tl.int64) * k * dimension + place, mask=there, other=0.0)
            total = tl.sum(advantage * action, axis=1)
            tl.store(derivative + row.to(tl.int64) * D_A + dimension, total, mask=in_range)

    @triton.jit
    def _sum_members(x, members, is_member, sums, n_cells, size, ROWS: tl.constexpr, PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
        cell = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        entry = tl.arange(0, PADDED)
        there = (cell < n_cells)[:, None] & (entry < size)[None, :]
        place = cell[:, None].to(tl.int64) * size + entry[None, :]
        member = tl.load(members + place, mask=there, other=0)
        counts = tl.load(is_member + place, mask=there, other=0) != 0
        total = tl.sum(tl.load(x + member, mask=there & counts, other=0.0), axis=1)
        tl.store(sums + cell, total, mask=cell < n_cells)

    @triton.jit
    def _add_by_cell(x, by_cell, cell, result, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        point = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        there = point < n
        addition = tl.load(by_cell + tl.load(cell + point, mask=there, other=0), mask=there, other=0.0)
        tl.store(result + point, tl.load(x + point, mask=there, other=0.0) + addition, mask=there)

    @triton.jit
    def _multiply(matrix, x, result, m, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
        row, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
        total = tl.zeros((ROWS, COLUMNS), x.dtype.element_ty)
        for start in range(0, n, COLUMNS):
            column = start + columns
            there = (row < m)[:, None] & (column < n)[None, :]
            entry = tl.load(matrix + row[:, None].to(tl.int64) * n + column[None, :], mask=there, other=0.0)
            total += entry.to(total.dtype) * tl.load(x + column, mask=column < n, other=0.0)[None, :]
        tl.store(result + row, tl.sum(total, axis=1), mask=row < m)
