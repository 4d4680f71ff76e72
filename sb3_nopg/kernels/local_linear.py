"""
Weights corrected to first order, so that the samples' mean lies where the query is.

Kernel weights w at a state s and action a average over samples (s_j, a_j) that lie around them. Where these lie to one side,
the average is that of another state: the chain of the Bellman equation *jumps* from s to the samples' mean, a free push that
a policy learns to live on. And it is that of another action: at the end of the actions' range all samples act less than the
policy does, and the estimate knows only part of what the policy can do. With δ_j = (s_j − s) / h the corrected weights are

    ℓ_j ∝ w_j max(1 + bᵀδ_j, c),    b = −(E_w[δδᵀ] + λI)⁻¹ E_w[δ]

for which Σ_j ℓ_j s_j = s up to the ridge λ and the clip c. The clip keeps rows stochastic, hence Λ invertible. Without ridge
and clip these are the weights of local-linear regression.

The same is done for actions, before it is done for states: where the samples cannot meet both, a wrong action is the lesser
evil. All at once, as regression would have it, gave up the state where a demonstration knows one action at each.
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
    :param slope: b, (d, m, a)
    :param mean: E_w[δ], (d, m, a)
    :param moments: E_w[δδᵀ] + λI, (d, d, m, a)
    """

    linear: th.Tensor
    slope: th.Tensor
    mean: th.Tensor
    moments: th.Tensor

    @property
    def factor(self) -> th.Tensor:
        """max(1 + bᵀδ, c), (m, a, k)."""
        return self.linear.clamp(min=LEAST_SHARE)

    def of(self, weights: th.Tensor) -> th.Tensor:
        """
        ℓ.

        :param weights: w, (m, a, k)
        :return: rows that sum to one, (m, a, k)
        """
        corrected = self.factor.mul_(weights)
        return corrected.div_(corrected.sum(dim=-1, keepdim=True))


def correction(weights: th.Tensor, displacements: th.Tensor) -> Correction:
    """
    :param weights: w, rows that sum to one, (m, a, k)
    :param displacements: δ, neighbours minus query in units of the bandwidth, (d, m, a, k); or (d, m, 1, k), the same for
        every action
    """
    mean, moments = _moments(weights, displacements)
    diagonal = moments.diagonal()
    # Far from all samples the ridge alone would drown in rounding errors.
    diagonal.add_(RIDGE + 8.0 * th.finfo(weights.dtype).eps * diagonal.sum(dim=-1, keepdim=True))
    slope = -_solve(moments, mean)
    return Correction(_product(slope, displacements).add_(1.0), slope, mean, moments)


def _moments(weights: th.Tensor, displacements: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
    """
    :param weights: w, (m, a, k)
    :param displacements: δ, (d, m, 1 or a, k)
    :return: E_w[δ], (d, m, a), and E_w[δδᵀ], (d, d, m, a)
    """
    d, _, n_own, _ = displacements.shape
    pairs = [(i, j) for i in range(d) for j in range(i, d)]
    if n_own == 1 and weights.shape[1] >= d:
        # The same for many actions: all products of displacements are made once, and one product with the weights is left.
        # They are d (d + 3) / 2 numbers for a query's neighbour, where the weights are as many as actions.
        planes = [*displacements[:, :, 0], *(displacements[i, :, 0] * displacements[j, :, 0] for i, j in pairs)]
        sums = list((weights @ th.stack(planes, dim=-1)).unbind(dim=-1))
    else:
        weighted = [weights * plane for plane in displacements]
        sums = [plane.sum(dim=-1) for plane in weighted]
        sums += [(weighted[i] * displacements[j]).sum(dim=-1) for i, j in pairs]
    seconds = dict(zip(pairs, sums[d:], strict=True))
    moments = th.stack([seconds[min(i, j), max(i, j)] for i in range(d) for j in range(d)])
    return th.stack(sums[:d]), moments.view(d, d, *moments.shape[1:])


def _weighted_sums(weights: th.Tensor, displacements: th.Tensor) -> th.Tensor:
    """
    :param weights: (m, a, k)
    :param displacements: δ, (d, m, 1 or a, k)
    :return: Σ_j w_j δ_j, (d, m, a)
    """
    if displacements.shape[2] == 1:
        return (weights @ displacements[:, :, 0].permute(1, 2, 0).contiguous()).permute(2, 0, 1)
    return th.stack([(weights * plane).sum(dim=-1) for plane in displacements])


def corrected_weights(weights: th.Tensor, displacements: th.Tensor) -> th.Tensor:
    """
    ℓ.

    :param weights: w, rows that sum to one, (m, a, k)
    :param displacements: δ, (d, m, 1 or a, k)
    :return: rows that sum to one, (m, a, k)
    """
    return correction(weights, displacements).of(weights)


def derivatives(
    weights: th.Tensor, displacements: th.Tensor, fit: Correction, q_values: th.Tensor
) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
    """
    v = Σ_j ℓ_j q_j and its derivatives: by the weights w_j, which is what takes the place of q_j as seen from w; and by the
    place that δ is measured from, in units of the bandwidth, with w held constant.

    With A_j = (q_j − v) / Σ_l w_l f_l, f the factor, dv = Σ_j A_j (f_j dw_j + w_j df_j). Where the clip does not act
    df_j = δ_jᵀ db + bᵀdδ, and M b = −m, with the first moments m and the second ones M, gives

        db = −M⁻¹ (Σ_j dw_j δ_j (1 + bᵀδ_j) + (1 + mᵀb) dδ + (bᵀdδ) m).

    With g = Σ_j A_j w_j δ_j and g₀ = Σ_j A_j w_j over entries that are not clipped, and y = M⁻¹ g, so that yᵀm = −gᵀb,

        ∂v/∂w_j = A_j f_j − (yᵀδ_j) (1 + bᵀδ_j),
        −∂v/∂δ = (1 + mᵀb) y − (gᵀb + g₀) b.

    :param weights: w, (m, a, k)
    :param displacements: δ, (d, m, 1 or a, k)
    :param fit: their correction
    :param q_values: at each query's neighbours, (m, 1 or a, k)
    :return: (m, a, 1), (m, a, k) and (m, a, d)
    """
    factor = fit.factor
    corrected = weights * factor
    total = corrected.sum(dim=-1, keepdim=True)
    mean = corrected.mul_(q_values).sum(dim=-1, keepdim=True) / total
    advantages = (q_values - mean).div_(total)
    # What is clipped counts for nothing here. (To multiply is much quicker than to fill by a mask.)
    pulls = (advantages * weights).mul_((fit.linear > LEAST_SHARE).to(weights.dtype))
    g = _weighted_sums(pulls, displacements)
    y = _solve(fit.moments, g)
    by_weight = advantages.mul_(factor).sub_(_product(y, displacements).mul_(fit.linear))
    moved = 1.0 + (fit.mean * fit.slope).sum(dim=0)
    turned = (g * fit.slope).sum(dim=0) + pulls.sum(dim=-1)
    return mean, by_weight, (moved * y - turned * fit.slope).permute(1, 2, 0)


def _product(slope: th.Tensor, displacements: th.Tensor) -> th.Tensor:
    """
    :param slope: (d, m, a)
    :param displacements: δ, (d, m, 1 or a, k)
    :return: slopeᵀ δ, (m, a, k)
    """
    total: th.Tensor | None = None
    for part, plane in zip(slope, displacements, strict=True):
        if total is None:
            total = part[..., None] * plane
        else:
            total.addcmul_(part[..., None], plane)
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
