"""Teaching a policy what something else would do."""

import torch as th

from sb3_nopg.policies.nopg_policy import DeterministicLinearPolicy, NOPGPolicy

# Next to a mean importance of one.
_LEAST_IMPORTANCE = 0.1
_FEW = 100_000
_N_STEPS, _BATCH, _LEARNING_RATE, _LAST_STEPS = 300, 1024, 1e-2, 0.1


def imitate(policy: NOPGPolicy, observations: th.Tensor, targets: th.Tensor, importance: th.Tensor | None = None) -> float:
    """
    Regression of a policy's mean action on targets, most of all where the choice matters.

    :param policy: its parameters change; its optimiser does not
    :param observations: (n, d_s)
    :param targets: actions, (n, d_a)
    :param importance: how much the choice matters at each, (n,); None for alike
    :return: weighted mean square that was left, of a network in the last batch, in units of half the actions' range
    """
    center, half_range = policy.action_center.to(targets), policy.action_half_range.to(targets)
    wanted = (targets - center) / half_range
    weights = th.ones_like(wanted[:, 0])
    if importance is not None:
        # Where nothing is at stake the target is an accident, but some action has to be learned there too.
        relative = importance / importance.mean().clamp_min(th.finfo(importance.dtype).tiny)
        weights = (relative + _LEAST_IMPORTANCE) / (1.0 + _LEAST_IMPORTANCE)
    if isinstance(policy, DeterministicLinearPolicy):
        policy.fit_gain(observations, targets, weights)
        left = (policy.action_distribution(observations)[0].detach().to(wanted) - targets) / half_range
        return float((weights * left.square().sum(dim=1)).mean())
    optimizer = th.optim.Adam(policy.parameters(), lr=_LEARNING_RATE)
    remaining, generator = 0.0, th.Generator().manual_seed(0)
    for number in range(_N_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = _LEARNING_RATE * (1.0 - (1.0 - _LAST_STEPS) * number / _N_STEPS)
        # Of few all, in another order; of many so many, some perhaps twice: an order of millions takes long.
        few = len(wanted) <= _FEW
        drawn = (
            th.randperm(len(wanted), generator=generator)[:_BATCH]
            if few
            else th.randint(len(wanted), (_BATCH,), generator=generator)
        )
        drawn = drawn.to(wanted.device)
        mean, _ = policy.action_distribution(observations[drawn])
        loss = (weights[drawn] * ((mean.to(wanted) - center) / half_range - wanted[drawn]).square().sum(dim=1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        remaining = float(loss.detach())
    return remaining
