"""SB3's own sign that an algorithm learns: an environment that rewards repeating the observation as the action."""

import numpy as np
import pytest
from stable_baselines3.common.envs import IdentityEnvBox
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from sb3_nopg import NOPG, NOPGD, NOPGS, TransitionDataset

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("whole_sizes")]


@pytest.fixture(scope="module")
def random_actions() -> TransitionDataset:
    """Eight episodes of a hundred uniformly random actions, one in twenty of which is rewarded."""
    env, rng = IdentityEnvBox(), np.random.default_rng(0)
    env.action_space.seed(0)
    columns: list[list] = [[] for _ in range(6)]
    for _ in range(8):
        observation, _ = env.reset()
        truncated = False
        while not truncated:
            action = rng.uniform(-1.0, 1.0, size=1)
            next_observation, reward, terminated, truncated, _ = env.step(action)
            row = (observation, action, reward, next_observation, terminated, truncated)
            for column, value in zip(columns, row, strict=True):
                column.append(value)
            observation = next_observation
    return TransitionDataset(*(np.array(column) for column in columns))


def mean_reward(model: NOPG, deterministic: bool = True) -> float:
    env = Monitor(IdentityEnvBox())
    env.action_space.seed(1)
    mean, _ = evaluate_policy(model, env, n_eval_episodes=3, deterministic=deterministic)
    return float(mean)


@pytest.mark.parametrize("algorithm", [NOPGD, NOPGS])
def test_learns_to_repeat_the_observation(algorithm: type[NOPG], random_actions: TransitionDataset):
    model = algorithm(
        "MlpPolicy",
        IdentityEnvBox(),
        dataset=random_actions,
        initial_states=random_actions.observations[:200],
        gamma=0.5,
        learning_rate=3e-2,
        # The reward is 1 within ±0.05 of the right action. An action kernel much wider blurs the reward; a much narrower
        # one gives no gradient to a policy that starts half the range away.
        estimator_kwargs={"state_bandwidth": 0.025, "action_bandwidth": 0.1, "n_action_samples": 4},
        # What is to be seen is that the gradient learns; value iteration would know the answer before it starts.
        transitions="samples",
        seed=0,
    )
    assert mean_reward(model) < 30.0, "the untrained policy must not know the answer"
    model.learn(40)
    assert mean_reward(model) >= 90.0
    # What is drawn from the stochastic policy must be good as well: its σ has learned to be small.
    assert mean_reward(model, deterministic=False) >= 90.0


def test_learns_as_well_without_the_environment(random_actions: TransitionDataset):
    model = NOPG(
        "LinearPolicy",
        None,
        dataset=random_actions,
        initial_states=random_actions.observations[:200],
        gamma=0.0,
        learning_rate=3e-2,
        estimator_kwargs={"state_bandwidth": 0.025, "action_bandwidth": 0.1},
        transitions="samples",
        seed=0,
    ).learn(60)
    assert mean_reward(model) >= 90.0
    # The task is linear, and the gain says so.
    np.testing.assert_allclose(model.policy.gain.detach().numpy(), [[1.0]], atol=0.05)
