"""Arguments and habits of Stable-Baselines3 that a user brings along."""

import io
import pathlib
import tempfile

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import TD3
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from helpers.reports import quick_report
from sb3_nopg import NOPG, NOPGS, InputError, TransitionDataset, export
from sb3_nopg.paper import AS_IN_THE_PAPER

SHAPE = (2, 2)


class FourForces(gym.Env):
    """A point that four forces push, written as a matrix."""

    def __init__(self, shape: tuple[int, ...] = SHAPE) -> None:
        self.observation_space = spaces.Box(-10.0, 10.0, (2,), dtype=np.float32)
        self.action_space = spaces.Box(-1.0, 2.0, shape, dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = self.np_random.uniform(-1.0, 1.0, 2)
        return self.position.astype(np.float32), {}

    def step(self, action):
        assert action.shape == self.action_space.shape
        self.position = np.clip(self.position + 0.1 * action.sum(), -10.0, 10.0)
        return self.position.astype(np.float32), -float((self.position**2).sum()), False, False, {}


class Doubled(BaseFeaturesExtractor):
    """Its input and some learned features of it."""

    def __init__(self, observation_space: spaces.Box, n_extra: int = 3):
        super().__init__(observation_space, observation_space.shape[0] + n_extra)
        self.layer = nn.Linear(observation_space.shape[0], n_extra)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return th.cat([observations, th.tanh(self.layer(observations))], dim=1)


def data(shape: tuple[int, ...] = SHAPE, n: int = 40) -> TransitionDataset:
    rng = np.random.default_rng(0)
    # One number each is still a column.
    states, actions = rng.uniform(-1, 1, (n, 2)), rng.uniform(-1, 2, (n, *(shape or (1,))))
    moved = states + 0.1 * actions.reshape(n, -1).sum(axis=1, keepdims=True)
    return TransitionDataset(
        states, actions, -(moved**2).sum(axis=1), moved, np.zeros(n, bool), episode_ids=np.arange(n) // 10
    )


def make(algorithm=NOPG, shape: tuple[int, ...] = SHAPE, **settings) -> NOPG:
    given = {**AS_IN_THE_PAPER, "seed": 0, "gamma": 0.9, "dataset": data(shape), **settings}
    return algorithm("MlpPolicy", FourForces(shape), **given)


@pytest.mark.parametrize("algorithm", [NOPG, NOPGS])
@pytest.mark.parametrize("shape", [SHAPE, (), (1, 3)])
def test_actions_have_the_shape_of_their_space(algorithm, shape):
    model = make(algorithm, shape).learn(2)
    env = FourForces(shape)
    state, _ = env.reset(seed=0)
    action, _ = model.predict(state, deterministic=True)
    assert action.shape == shape
    env.step(action)
    assert model.predict(np.stack([state] * 5))[0].shape == (5, *shape)
    assert model.dataset.actions.shape == (40, int(np.prod(shape)))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [SHAPE, ()])
def test_reports_and_exports_take_actions_of_any_shape(shape, tmp_path: pathlib.Path):
    model = make(NOPG, shape)
    n_actions = int(np.prod(shape))
    assert model.evaluation.act(np.zeros((3, 2))).shape == (3, n_actions)
    assert quick_report(model).action_labels == [f"a[{number}]" for number in range(n_actions)]
    assert export(model, tmp_path / "policy.onnx").is_file()


@pytest.mark.slow
def test_with_a_model_of_the_system_too(tmp_path: pathlib.Path):
    model = make(transitions="model", model_kwargs={"n_nodes": 40}).learn(2)
    state = np.array([0.4, -0.2], dtype=np.float32)
    model.save(tmp_path / "model")
    loaded = NOPG.load(tmp_path / "model")
    assert loaded.action_space.shape == SHAPE
    np.testing.assert_array_equal(loaded.predict(state)[0], model.predict(state)[0])
    # An ONNX file is for a rig, whose actions are a list.
    assert model.export(tmp_path / "policy.onnx").exists()


def test_a_buffer_of_another_algorithm_with_a_matrix_as_action(tmp_path: pathlib.Path):
    td3 = TD3("MlpPolicy", gym.wrappers.TimeLimit(FourForces(), 10), buffer_size=40, learning_starts=100, device="cpu", seed=0)
    td3.learn(30)
    recorded = TransitionDataset.from_replay_buffer(td3.replay_buffer)
    assert recorded.actions.shape == (30, 4)
    moved = recorded.next_observations - recorded.observations
    np.testing.assert_allclose(moved[:, 0], 0.1 * recorded.actions.sum(axis=1), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("transitions", ["samples", "model"])
def test_a_features_extractor_learns_with_the_policy_and_is_saved(transitions: str, tmp_path: pathlib.Path):
    extractor = {"features_extractor_class": Doubled, "features_extractor_kwargs": {"n_extra": 4}}
    model = make(transitions=transitions, model_kwargs={"n_nodes": 40}, policy_kwargs={"net_arch": [8], **extractor})
    assert model.policy.network[0].in_features == 6
    before = model.policy.features_extractor.layer.weight.detach().clone()
    model.learn(3)
    assert not th.equal(before, model.policy.features_extractor.layer.weight)
    state = np.array([0.4, -0.2])
    model.save(tmp_path / "model")
    # A class of one's own is in a pickle.
    np.testing.assert_array_equal(NOPG.load(tmp_path / "model", trust=True).predict(state)[0], model.predict(state)[0])
    model.policy.save(tmp_path / "policy")
    np.testing.assert_array_equal(type(model.policy).load(tmp_path / "policy").predict(state)[0], model.predict(state)[0])


@pytest.mark.parametrize(("transitions", "sizes"), [("samples", [50]), ("model", [64, 64])])
def test_no_net_arch_is_our_own_default(transitions: str, sizes: list[int], tmp_path: pathlib.Path):
    for policy_kwargs in ({"net_arch": None}, {}):
        model = make(transitions=transitions, policy_kwargs=policy_kwargs)
        assert model.policy.net_arch == sizes
    model.save(tmp_path / "model")
    assert NOPG.load(tmp_path / "model").policy.net_arch == sizes


def test_of_a_net_arch_for_actor_and_critic_the_actor_s_counts():
    with pytest.warns(UserWarning, match="no critic"):
        model = make(policy_kwargs={"net_arch": {"pi": [8, 4], "qf": [16]}})
    assert model.policy.net_arch == [8, 4]
    with pytest.raises(InputError, match="net_arch"):
        make(policy_kwargs={"net_arch": {"pi": [8]}})


def test_the_window_of_statistics():
    model = make(stats_window_size=7).learn(1)
    assert model.ep_info_buffer.maxlen == 7
    with pytest.raises(InputError, match="stats_window_size"):
        make(stats_window_size=0)


def test_all_that_a_state_dict_holds_are_real_numbers():
    for algorithm in (NOPG, NOPGS):
        assert all(tensor.is_floating_point() for tensor in make(algorithm).policy.state_dict().values())


def test_a_policy_s_digest_is_what_it_was_when_the_state_dict_held_a_flag():
    from sb3_nopg.data.fingerprint import parameter_fingerprint

    class Flagged(nn.Module):
        def __init__(self, flag: th.Tensor):
            super().__init__()
            self.register_buffer("normalization_fitted", flag)

    assert parameter_fingerprint(Flagged(th.tensor(1.0))) == parameter_fingerprint(Flagged(th.tensor(True)))
    assert parameter_fingerprint(Flagged(th.tensor(1.0))) != parameter_fingerprint(Flagged(th.tensor(0.0)))


def test_an_open_file_stays_open():
    model = make()
    with tempfile.TemporaryFile() as file:
        model.save_replay_buffer(file)
        file.seek(0)
        model.load_replay_buffer(file)
        assert not file.closed
    memory = io.BytesIO(b"no pickle")
    with pytest.raises(InputError, match="pickle"):
        model.load_replay_buffer(memory)
    assert not memory.closed


def test_the_number_of_updates_is_logged_by_every_update():
    model = make().learn(3, log_interval=None)
    assert model.logger.name_to_value["train/n_updates"] == 3
    model.train(gradient_steps=2)
    assert model.logger.name_to_value["train/n_updates"] == 5
    # Also where the log has just been written.
    assert make().learn(4, log_interval=2).logger.name_to_value["train/n_updates"] == 4


def test_a_loaded_model_says_what_it_wants_to_learn_from(tmp_path: pathlib.Path):
    make().save(tmp_path / "model")
    loaded = NOPG.load(tmp_path / "model", FourForces())
    with pytest.raises(InputError, match=r"Pass dataset=.* load\(\).*set_dataset\(\).*load_replay_buffer\(\)"):
        loaded.learn(1)
    assert NOPG.load(tmp_path / "model", FourForces(), dataset=data()).learn(1).num_timesteps == 1


def test_spaces_that_cannot_be_are_refused_as_sb3_does():
    with pytest.raises(AssertionError, match="action_space"):
        NOPG("MlpPolicy", "CartPole-v1")
