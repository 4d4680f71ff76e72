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

    :param factor: max(1 + bᵀδ, c), (m, a, k)
    :param linear: 1 + bᵀδ, (m, a, k)
    :param moments: E_w[δδᵀ] + λI as a Cholesky factor, (m, a, d_s, d_s)
    """

    factor: th.Tensor
    linear: th.Tensor
    moments: th.Tensor


def correction(weights: th.Tensor, displacements: th.Tensor) -> Correction:
    """
    :param weights: w, rows that sum to one, (m, a, k)
    :param displacements: δ, neighbours minus query in units of the bandwidth, (m, k, d_s)
    """
    # One action after another: all products of displacements at once would be d_s times as much memory as anything else.
    second = th.stack([(displacements * row[..., None]).mT @ displacements for row in weights.unbind(dim=1)], dim=1)
    second.diagonal(dim1=-2, dim2=-1).add_(RIDGE)
    mean = weights @ displacements
    cholesky = th.linalg.cholesky(second)
    slope = -th.cholesky_solve(mean[..., None], cholesky)[..., 0]
    linear = 1.0 + slope @ displacements.mT
    return Correction(linear.clamp(min=LEAST_SHARE), linear, cholesky)


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
    corrected = weights * fit.factor
    total = corrected.sum(dim=-1, keepdim=True)
    q_values = q_values[:, None, :]
    advantages = (q_values - (corrected * q_values).sum(dim=-1, keepdim=True) / total) / total
    free = fit.linear > LEAST_SHARE
    y = th.cholesky_solve(((advantages * weights * free) @ displacements)[..., None], fit.moments)[..., 0]
    return advantages * fit.factor - (y @ displacements.mT) * fit.linear
