"""
Where to start climbing from.

The return of a policy network has many local optima, and pushing one way for ever is often one. Several starts that share the
neighbour lists are tried for a few updates each, and the most promising one is climbed from: the network's own parameters, the
greedy choice of kernel value iteration, and networks drawn anew.
"""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch as th

from sb3_nopg.errors import SolverError
from sb3_nopg.keeping import load_parameters, parameters_of
from sb3_nopg.policies import NOPGPolicy
from sb3_nopg.value_iteration import candidate_actions, imitate, iterate_values

if TYPE_CHECKING:
    from sb3_nopg.nopg import NOPG

_logger = logging.getLogger(__name__)
# Updates that each start may make before they are compared.
N_TRIAL_UPDATES = 30


@dataclass(frozen=True)
class StartTrial:
    """
    One start and how far it came.

    :param name: ``"own"``, ``"value_iteration"``, ``"restart 1"``, …
    :param score: held-out return after the trial where there are held-out data, else Ĵ
    :param seconds: what it cost
    """

    name: str
    score: float
    seconds: float


def choose_start(model: "NOPG", score: Callable[[], float]) -> tuple[StartTrial, ...]:
    """
    Try all starts that the model's settings ask for, and leave the model at the best one.

    :param model: with its data attached
    :param score: of the model as it is
    :return: every trial, the chosen one first; nothing where there is but one start
    """
    starts = dict(_starts(model))
    if len(starts) == 1:
        return ()
    outcomes: list[tuple[StartTrial, dict[str, Any]]] = []
    untouched = parameters_of(model.policy)
    for name, begin in starts.items():
        began = time.perf_counter()
        load_parameters(model.policy, untouched)
        begin()
        model.begin_again()
        try:
            model.train(N_TRIAL_UPDATES)
            trial = StartTrial(name, score(), time.perf_counter() - began)
        except SolverError as error:
            _logger.warning("The start from %s is given up: %s", name, error)
            continue
        outcomes.append((trial, parameters_of(model.policy)))
    outcomes.sort(key=lambda outcome: -outcome[0].score)
    # Where all were given up, training meets the same trouble, and tells it.
    load_parameters(model.policy, outcomes[0][1] if outcomes else untouched)
    model.begin_again()
    return tuple(trial for trial, _ in outcomes)


def start_from_value_iteration(model: "NOPG") -> None:
    """
    Teach the model's policy what kernel value iteration would do.

    :param model: with its data attached
    """
    problem = model.prepared_problem()
    candidates = th.as_tensor(candidate_actions(model.action_space)).to(problem.rewards)
    imitate(model.policy, problem.queries, iterate_values(problem, candidates))


def _starts(model: "NOPG") -> Iterator[tuple[str, Callable[[], None]]]:
    yield "own", lambda: None
    # Value iteration looks at all rows at once, which no process of several has.
    if model.value_iteration_start and not model.processes.several:
        yield "value_iteration", lambda: start_from_value_iteration(model)
    for number in range(1, model.n_restarts + 1):
        yield f"restart {number}", lambda number=number: _draw_parameters(model, number)  # type: ignore[misc]


def fresh_policy(model: "NOPG", number: int = 0) -> NOPGPolicy:
    """
    :param model: any
    :param number: of the draw
    :return: a policy like the model's, with parameters of its own, on the processor
    """
    with th.random.fork_rng(devices=[]):
        th.manual_seed(model.noise_seed + number)
        policy = model.policy_class(model.observation_space, model.action_space, model.lr_schedule, **model.policy_kwargs)
    assert isinstance(policy, NOPGPolicy)
    return policy


def _draw_parameters(model: "NOPG", number: int) -> None:
    """Parameters as another seed would have drawn them; what the policy knows of the data stays."""
    drawn = dict(fresh_policy(model, number).named_parameters())
    with th.no_grad():
        for name, parameter in model.policy.named_parameters():
            parameter.copy_(drawn[name])
