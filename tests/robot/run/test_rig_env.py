"""The rig as a Gymnasium environment, on the simulated cart in simulated time."""

import math
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from gymnasium.wrappers import RescaleAction, TimeLimit
from stable_baselines3.common.evaluation import evaluate_policy

from helpers.repository import environment
from helpers.rigs import balance, quick_rig
from nopg_robot.flight.log import read_flight
from nopg_robot.rig.errors import PhaseError, RobotError
from nopg_robot.run.loop import SafetyStop
from nopg_robot.run.rig_env import RigEnv


class Balancer:
    """What evaluate_policy asks of a model."""

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        return np.stack([balance(row) for row in observation]), state


@pytest.fixture
def env(tmp_path):
    env = RigEnv(quick_rig(), tmp_path / "flight.npz", max_episode_steps=100)
    yield env
    env.close()


@pytest.mark.slow
def test_evaluate_policy_works_on_a_rig(env, tmp_path):
    with pytest.warns(UserWarning, match="Monitor"):
        mean, _ = evaluate_policy(Balancer(), env, n_eval_episodes=2)
    assert mean == pytest.approx(100.0, rel=1e-2)
    env.close()
    log = read_flight(tmp_path / "flight.npz")
    assert log.complete
    assert len(log.transitions()["observations"]) >= 198


@pytest.mark.slow
def test_observations_are_those_of_the_simulator(env):
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert observation[2] == pytest.approx(1.0, abs=2e-3)
    observation, reward, terminated, truncated, info = env.step(np.zeros(1, dtype=np.float32))
    assert env.observation_space.contains(observation)
    assert reward == pytest.approx(math.cos(math.atan2(observation[1], observation[2])))
    assert not terminated
    assert not truncated
    assert info == {}


@pytest.mark.slow
def test_a_fallen_pole_terminates_and_the_next_episode_begins(env):
    env.reset()
    for _ in range(100):
        _, _, terminated, _, info = env.step(np.array([5.0]))
        if terminated:
            break
    assert info["termination"] in ("angle", "rail")
    with pytest.raises(RobotError, match="reset"):
        env.step(np.zeros(1))
    observation, _ = env.reset()
    assert abs(observation[1]) < 0.06


@pytest.mark.slow
def test_wrappers_work(env):
    wrapped = TimeLimit(RescaleAction(env, np.float32(-1.0), np.float32(1.0)), 5)
    wrapped.reset()
    for _ in range(5):
        *_, truncated, _ = wrapped.step(np.array([0.0], dtype=np.float32))
    assert truncated


@pytest.mark.slow
def test_any_other_fault_raises_and_leaves_the_motor_off(env, tmp_path):
    env.reset()
    cart = env._session.rig.plant.cart
    with pytest.raises(SafetyStop, match="nan"):
        env.step(np.array([math.nan]))
    assert cart.voltage == 0.0
    summary = read_flight(tmp_path / "flight.npz").summary
    assert (summary["outcome"], summary["fault"]) == ("stopped", "policy_output")


def test_a_rig_that_fails_its_self_test_is_closed(tmp_path):
    env = RigEnv(quick_rig(motor={"sign": -1}), tmp_path / "flight.npz")
    with pytest.raises(PhaseError, match="self-test"):
        env.reset()
    assert read_flight(tmp_path / "flight.npz").complete


def test_bad_arguments_name_the_field(tmp_path):
    with pytest.raises(ValueError, match="pole"):
        RigEnv(quick_rig(), tmp_path / "a.npz", pole="x")
    with pytest.raises(ValueError, match="max_episode_steps"):
        RigEnv(quick_rig(), tmp_path / "a.npz", max_episode_steps=0)


@pytest.mark.slow
def test_learning_never_touches_the_rig(tmp_path):
    from sb3_nopg import NOPG, TransitionDataset

    rng = np.random.default_rng(0)
    observations = rng.normal(scale=0.1, size=(60, 5))
    data = TransitionDataset(
        observations=observations,
        actions=rng.uniform(-5.0, 5.0, size=(60, 1)),
        rewards=np.ones(60),
        next_observations=observations + rng.normal(scale=0.01, size=(60, 5)),
        terminals=np.zeros(60, dtype=bool),
    )
    env = RigEnv(quick_rig(), tmp_path / "flight.npz")
    for transitions in ("samples", "model"):
        NOPG("MlpPolicy", env, dataset=data, initial_states=np.zeros(5), transitions=transitions, seed=0).learn(4)
    assert not list(tmp_path.iterdir())


SCRIPT = """
import atexit, sys
import numpy as np
from nopg_robot.run.rig_env import RigEnv
from helpers.rigs import quick_rig

env = RigEnv(quick_rig(), "flight.npz")
cart = []
# What is registered first is called last.
atexit.register(lambda: print("at the end:", cart[0].voltage))
env.reset()
cart.append(env._session.rig.plant.cart)
env.step(np.array([3.0]))
print("before:", cart[0].voltage)
raise RuntimeError("the script dies")
"""


@pytest.mark.slow
def test_a_script_that_dies_does_not_leave_the_motor_on(tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment(), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "before: 3.0" in result.stdout
    assert "at the end: 0.0" in result.stdout
    assert "the script dies" in result.stderr
    assert read_flight(tmp_path / "flight.npz").complete


@pytest.mark.slow
def test_a_signal_stops_the_rig_in_the_next_step(env):
    # A shell lets programs in the background ignore Ctrl-C.
    before = signal.getsignal(signal.SIGINT)
    env.reset()
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(SafetyStop, match="Ctrl-C"):
        env.step(np.zeros(1))
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.slow
def test_a_fault_after_an_episode_is_not_forgotten(env):
    env.reset()
    cart = env._session.rig.plant.cart
    for _ in range(99):
        env.step(balance(env._observe(env._session.loop.estimator.state)))
    action = balance(env._observe(env._session.loop.estimator.state))
    settle = env._session.settle
    env._session.settle = lambda: (setattr(cart, "count_jump", 4000), settle())
    # A new phase has no history to jump from: the velocity tells.
    with pytest.raises(SafetyStop, match="x_dot"):
        env.step(action)
    with pytest.raises(RobotError, match="reset"):
        env.step(action)
