"""
Weights corrected to first order, so that the samples' mean lies where the query is.

Kernel weights w at a state s average over samples s_j that lie around it. Where they lie to one side, the average is that of
another state: the chain of the Bellman equation *jumps* from s to the samples' mean, a free push that a policy learns to live
on. With δ_j = (s_j − s) / h the corrected weights are

    ℓ_j ∝ w_j max(1 + bᵀδ_j, c),    b = −(E_w[δδᵀ] + λI)⁻¹ E_w[δ]

for which Σ_j ℓ_j s_j = s up to the ridge λ and the clip c. The clip keeps rows stochastic, hence Λ invertible. Without ridge
and clip these are the weights of local-linear regression.
"""

from dataclasses import dataclass

import torch as th

# A sample never loses more than this share of its kernel weight.
LEAST_SHARE = 0.02
# In units of the bandwidth squared: where samples spread less than a tenth of it, there is nothing to correct.
RIDGE = 0.01


@dataclass(frozen=True)
class Correction:
    """
    What multiplies kernel weights, and how it came about.

    :param linear: 1 + bᵀδ; the factor is this or c, where this is less, (m, a, k)
    :param moments: E_w[δδᵀ] + λI, (d_s, d_s, m, a)
    """

    linear: th.Tensor
    moments: th.Tensor

    @property
    def factor(self) -> th.Tensor:
        """max(1 + bᵀδ, c), (m, a, k)."""
        return self.linear.clamp(min=LEAST_SHARE)


def correction(weights: th.Tensor, displacements: th.Tensor) -> Correction:
    """
    :param weights: w, rows that sum to one, (m, a, k)
    :param displacements: δ, neighbours minus query in units of the bandwidth, (m, k, d_s); all is quickest where they lie in
        memory one dimension after the other
    """
    means, seconds = [], []
    # One action after another: all products of displacements at once would be d_s times as much memory as anything else.
    for row in weights.unbind(dim=1):
        weighted = displacements * row[..., None]
        means.append(weighted.sum(dim=1))
        seconds.append(weighted.mT @ displacements)
    second = th.stack(seconds, dim=1).permute(2, 3, 0, 1).contiguous()
    second.diagonal().add_(RIDGE)
    slope = -_solve(second, th.stack(means, dim=1).permute(2, 0, 1))
    return Correction(_product(slope, displacements) + 1.0, second)


def corrected_weights(weights: th.Tensor, displacements: th.Tensor) -> th.Tensor:
    """
    ℓ.

    :param weights: w, rows that sum to one, (m, a, k)
    :param displacements: δ, (m, k, d_s)
    :return: rows that sum to one, (m, a, k)
    """
    corrected = weights * correction(weights, displacements).factor
    return corrected / corrected.sum(dim=-1, keepdim=True)


def weight_derivative(weights: th.Tensor, displacements: th.Tensor, q_values: th.Tensor) -> th.Tensor:
    """
    ∂v/∂w_j for v = Σ_j ℓ_j q_j: what takes the place of q_j in the covariance that is ∂v/∂a.

    With A_j = (q_j − v) / Σ_l w_l f_l, f the factor, dv = Σ_j A_j (f_j dw_j + w_j df_j). Where the clip does not act
    df_j = δ_jᵀ db, and M b = −E_w[δ] gives db = −M⁻¹ Σ_j dw_j δ_j (1 + bᵀδ_j). Together

        ∂v/∂w_j = A_j f_j − (yᵀδ_j) (1 + bᵀδ_j),    y = M⁻¹ Σ_j A_j w_j δ_j over entries that are not clipped.

    :param weights: w, (m, a, k)
    :param displacements: δ, (m, k, d_s)
    :param q_values: at each query's neighbours, (m, k)
    :return: (m, a, k)
    """
    fit = correction(weights, displacements)
    factor = fit.factor
    corrected = weights * factor
    total = corrected.sum(dim=-1, keepdim=True)
    q_values = q_values[:, None, :]
    mean = corrected.mul_(q_values).sum(dim=-1, keepdim=True) / total
    advantages = (q_values - mean).div_(total)
    # What is clipped counts for nothing here.
    pulls = (advantages * weights).masked_fill_(fit.linear <= LEAST_SHARE, 0.0)
    means = th.stack([(pulls * column[:, None, :]).sum(dim=-1) for column in displacements.unbind(dim=-1)])
    y = _solve(fit.moments, means)
    return advantages.mul_(factor).sub_(_product(y, displacements).mul_(fit.linear))


def _product(slope: th.Tensor, displacements: th.Tensor) -> th.Tensor:
    """
    :param slope: (d_s, m, a)
    :param displacements: δ, (m, k, d_s)
    :return: slopeᵀ δ, (m, a, k)
    """
    total: th.Tensor | None = None
    for part, column in zip(slope, displacements.unbind(dim=-1), strict=True):
        if total is None:
            total = part[..., None] * column[:, None, :]
        else:
            total.addcmul_(part[..., None], column[:, None, :])
    assert total is not None
    return total


def _solve(matrix: th.Tensor, rhs: th.Tensor) -> th.Tensor:
    """
    Very many very small systems at once, by elimination: the libraries that a GPU has for it take one after the other.

    :param matrix: symmetric and positive definite, so that no pivot vanishes, (d, d, …)
    :param rhs: (d, …)
    :return: (d, …)
    """
    triangle = []
    for _ in range(len(rhs)):
        pivot_row = matrix[0]
        triangle.append((pivot_row, rhs[0]))
        factor = matrix[1:, 0] / pivot_row[0]
        rhs = rhs[1:] - factor * rhs[0]
        matrix = matrix[1:, 1:] - factor[:, None] * pivot_row[1:]
    solution: list[th.Tensor] = []
    for pivot_row, remaining in reversed(triangle):
        for coefficient, known in zip(pivot_row[1:], reversed(solution), strict=True):
            remaining = remaining - coefficient * known
        solution.append(remaining / pivot_row[0])
    return th.stack(solution[::-1])
