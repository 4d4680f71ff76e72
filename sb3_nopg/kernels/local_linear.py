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

Nearly all time goes into reading and writing numbers of which there is one for every query, action and neighbour. So what is
made of them is passed over as few times as can be, in memory that is in use already. What there is one of for a query and
action, a :class:`Correction`, is kept from the weights to their derivative.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch as th

from sb3_nopg.kernels.displacements import Displacements, Small, batch_product, small, tensor
from sb3_nopg.kernels.workspace import Workspace

# A sample never loses more than this share of its kernel weight.
LEAST_SHARE = 0.02
# In units of the bandwidth squared: where samples spread less than a tenth of it, there is nothing to correct.
RIDGE = 0.01


@dataclass(frozen=True)
class Correction:
    """
    What multiplies weights: max(1 + bᵀδ, c).

    :param slope: b, (d, m, a)
    :param mean: E_w[δ], (d, m, a)
    :param moments: M = E_w[δδᵀ] + λI, (d, d, m, a)
    :param ridge: λ, (m, a)
    :param total: what the weights sum to before they are multiplied, (m, a)
    :param tilted: E_w[(1 + bᵀδ) δδᵀ], where it cost next to nothing, (d, d, m, a)
    """

    slope: Small
    mean: Small
    moments: Small
    ridge: Small
    total: Small
    tilted: Small = None

    def applied(self, weights: th.Tensor, displacements: Displacements, out: th.Tensor) -> th.Tensor:
        """
        :param weights: w, (m, a, k)
        :param displacements: δ
        :param out: w_j max(1 + bᵀδ_j, c), (m, a, k)
        """
        return displacements.linear(self.slope, 1.0, out).clamp_(min=LEAST_SHARE).mul_(weights)


def correction(weights: th.Tensor, displacements: Displacements) -> Correction:
    """
    :param weights: w up to a factor for each row, (m, a, k)
    :param displacements: δ
    """
    total, mean, moments, cube = displacements.moments_and_cube(weights)
    share = 1.0 / total
    mean, moments = mean * share, moments * share
    d = len(mean)
    # Far from all samples the ridge alone would drown in rounding errors.
    ridge = RIDGE + 8.0 * th.finfo(weights.dtype).eps * sum(moments[i, i] for i in range(d))
    for i in range(d):
        moments[i, i] += ridge
    slope = -_solve(moments, mean)
    tilted = None if cube is None else moments - ridge + slope * (cube * share)
    return Correction(slope, mean, moments, ridge, total, tilted)


@dataclass(frozen=True)
class Corrections:
    """
    By actions and then by states.

    :param by_action: of kernel weights w
    :param by_state: of what that makes of them
    :param total: what the weights sum to after both, (m, a)
    """

    by_action: Correction
    by_state: Correction
    total: Small

    def of(self, chosen: Any) -> "Corrections":
        """
        At some of the queries.

        :param chosen: their numbers, (rows,), or a slice
        """
        if isinstance(chosen, th.Tensor):
            chosen = small(chosen)
        return _mapped(lambda array: array[..., chosen, :], self)

    @classmethod
    def joined(cls, parts: list["Corrections"]) -> "Corrections":
        """
        :param parts: of some queries, and of the next ones
        """
        return _mapped(lambda *arrays: small(th.cat([tensor(array) for array in arrays], dim=-2)), *parts)


def _mapped(function: Any, *records: Any) -> Any:
    """A record made of what a function makes of the records' arrays."""
    if records[0] is None:
        return None
    if not isinstance(records[0], (Correction, Corrections)):
        return function(*records)
    names = [field.name for field in fields(records[0])]
    return type(records[0])(*(_mapped(function, *(getattr(record, name) for record in records)) for name in names))


def correct(
    weights: th.Tensor, actions: Displacements, states: Displacements, workspace: Workspace
) -> tuple[th.Tensor, Corrections]:
    """
    :param weights: w, (m, a, k)
    :param actions: δ of the actions
    :param states: δ of the states
    :param workspace: to work in
    :return: ℓ up to a factor for each row, in the workspace, (m, a, k); and how it came about
    """
    by_action = correction(weights, actions)
    half_way = by_action.applied(weights, actions, workspace.array("half way", *weights.shape))
    by_state = correction(half_way, states)
    corrected = by_state.applied(half_way, states, workspace.array("corrected", *weights.shape))
    return corrected, Corrections(by_action, by_state, small(corrected.sum(dim=-1)))


def corrected_derivative(
    weights: th.Tensor,
    values: th.Tensor,
    actions: Displacements,
    states: Displacements,
    corrections: Corrections | None,
    workspace: Workspace,
) -> tuple[th.Tensor, th.Tensor]:
    """
    Of v = Σ_j ℓ_j q_j by the action a, on which the weights w depend, w_j ∝ ψ_j exp(−½‖δ_j‖²), and the ways δ_j = a_j − a.

    **One correction.** Let weights u, which sum to one, become ℓ_j = u_j f_j / T with f_j = max(l_j, c), l_j = 1 + bᵀδ_j and
    T = Σ_j u_j f_j. With A_j = (q_j − v) / T, dv = Σ_j A_j (f_j du_j + u_j df_j). Where the clip does not act
    df_j = δ_jᵀ db + bᵀdδ, and M b = −m, with the first moments m and the second ones M, gives

        db = −M⁻¹ (Σ_j du_j δ_j l_j + (1 + mᵀb) dδ + (bᵀdδ) m).

    With g = Σ_j A_j u_j δ_j and g₀ = Σ_j A_j u_j over entries that are not clipped, and y = M⁻¹ g, so that yᵀm = −gᵀb,

        ∂v/∂u_j = A_j f_j − (yᵀδ_j) l_j,
        −∂v/∂δ = (1 + mᵀb) y − (gᵀb + g₀) b.

    ∂v/∂u takes the place of q as seen from u, and its mean needs no sum: Σ_j u_j A_j f_j is zero and Σ_j u_j δ_j l_j is
    m + (M − λI) b = −λ b, so that

        Σ_j u_j ∂v/∂u_j = λ yᵀb.

    **Two.** So the states' correction leads from q back to what it was given, and the actions' from there to w. Then
    ∂v/∂a = Σ_j w_j (∂v/∂w_j − mean) δ_j − ∂v/∂δ.

    :param weights: w, rows that sum to one, (m, a, k)
    :param values: q at each query's neighbours, held constant, (m, k)
    :param actions: δ of the actions
    :param states: δ of the states
    :param corrections: of these weights; None to find them
    :param workspace: to work in
    :return: v, (m, a), and ∂v/∂a in units of the bandwidth, (m, a, d_a)
    """
    if corrections is None:
        _, corrections = correct(weights, actions, states, workspace)
    by_action, by_state = corrections.by_action, corrections.by_state
    action_linear, state_linear, half_way, pulls, seen, scratch = (
        workspace.array(name, *weights.shape)
        for name in ("action linear", "state linear", "half way", "pulls", "seen", "scratch")
    )
    actions.linear(by_action.slope, 1.0, action_linear)
    th.clamp(action_linear, min=LEAST_SHARE, out=half_way).mul_(weights)
    states.linear(by_state.slope, 1.0, state_linear)
    th.clamp(state_linear, min=LEAST_SHARE, out=scratch)
    # Values have a large common part, of which the first neighbour's rids the sums.
    differences = (values - values[:, :1])[:, None, :]
    mean = batch_product(th.mul(half_way, scratch, out=pulls), differences.mT) / tensor(corrections.total)[..., None]

    # Through the correction by states, everything times T.
    th.sub(differences, mean, out=seen)
    th.gt(state_linear, LEAST_SHARE, out=pulls).mul_(half_way).mul_(seen)
    y = _solve(by_state.moments, states.sums(pulls)[1] / by_state.total)
    seen.mul_(scratch).addcmul_(states.linear(y, 0.0, scratch), state_linear, value=-1.0)
    seen.sub_(tensor(_mean_seen(by_state, y))[..., None])

    # Through the correction by actions, everything times its T as well. What is clipped there has a constant factor, and the
    # rest a linear one: Σ_j w_j A_j f_j δ_j = Σ_clipped w_j A_j c δ_j + Σ_others w_j A_j (δ_j + δ_j δ_jᵀ b).
    _, all_g = actions.sums(seen.mul_(weights))
    g0, g, h = actions.moments(th.gt(action_linear, LEAST_SHARE, out=pulls).mul_(seen))
    y = _solve(by_action.moments, g)
    covariance = LEAST_SHARE * (all_g - g) + g + _times(h, by_action.slope)
    tilted = by_action.tilted
    if tilted is None:
        tilted = actions.moments(action_linear.mul_(weights))[2]
    covariance = covariance - _times(tilted, y) - _mean_seen(by_action, y) * by_action.mean
    moved = 1.0 + (by_action.mean * by_action.slope).sum(0)
    turned = (g * by_action.slope).sum(0) + g0
    of_action = (covariance + moved * y - turned * by_action.slope) / corrections.total
    return mean[..., 0] + values[:, :1], tensor(of_action).permute(1, 2, 0)


def _mean_seen(fit: Correction, y: Small) -> Small:
    """λ yᵀb, (m, a)."""
    return fit.ridge * (y * fit.slope).sum(0)


def _times(matrix: Small, vector: Small) -> Small:
    """(d, d, m, a) by (d, m, a)."""
    return (matrix * vector).sum(1)


def _solve(matrix: Small, rhs: Small) -> Small:
    """
    Very many very small systems at once, by elimination: the libraries that a GPU has for it take one after the other.

    :param matrix: symmetric and positive definite, so that no pivot vanishes, (d, d, …)
    :param rhs: (d, …)
    :return: (d, …)
    """
    triangle = []
    for _ in range(len(rhs) - 1):
        pivot_row = matrix[0]
        triangle.append((pivot_row, rhs[0]))
        factor = matrix[1:, 0] / pivot_row[0]
        rhs = rhs[1:] - factor * rhs[0]
        matrix = matrix[1:, 1:] - factor[:, None] * pivot_row[1:]
    solution = [rhs[0] / matrix[0, 0]]
    for pivot_row, remaining in reversed(triangle):
        for coefficient, known in zip(pivot_row[1:], reversed(solution), strict=True):
            remaining = remaining - coefficient * known
        solution.append(remaining / pivot_row[0])
    return th.stack(solution[::-1]) if isinstance(rhs, th.Tensor) else np.stack(solution[::-1])
