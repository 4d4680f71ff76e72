"""Bad input: every case is told by the name of its field and what to do, before any work, and nothing is lost."""

import json
import re
import zipfile

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from stable_baselines3.td3.policies import TD3Policy

import sb3_nopg.prediction.estimator
from helpers.models import make_nopg
from sb3_nopg import NOPG, FixedReplayBuffer, InputError, SolverError, TransitionDataset
from sb3_nopg.bellman.settings import NAMES
from sb3_nopg.data.buffer import spaces_of

N = 24
BOX, ACTION_BOX = spaces.Box(-9, 9, (3,)), spaces.Box(-2, 2, (1,))
# Numbers, because choosing bandwidths is not what these tests are about.
BANDWIDTHS = {"state_bandwidth": 0.5, "action_bandwidth": 0.5, "next_state_bandwidth": 0.5, "transitions": "samples"}


def make_arrays(n=N):
    """Shaped like the pendulum's data: three state dimensions, one torque within ±2."""
    rng = np.random.default_rng(0)
    return {
        "observations": rng.uniform(-1, 1, size=(n, 3)),
        "actions": rng.uniform(-2, 2, size=(n, 1)),
        "rewards": rng.normal(size=n),
        "next_observations": rng.uniform(-1, 1, size=(n, 3)),
        "terminals": np.arange(n) % 12 == 5,
        "episode_ids": np.arange(n) // 6,
    }


def make_dataset(n=N, **changes):
    return TransitionDataset(**{**make_arrays(n), **changes})


def make_model(env="Pendulum-v1", policy="MlpPolicy", **arguments):
    return make_nopg(
        policy,
        env,
        **{"dataset": make_dataset(), "device": "cpu", "seed": 0, **BANDWIDTHS, **arguments},
    )


def with_entry(name, value, index=3):
    """The field's array with one entry replaced."""
    array = make_arrays()[name].copy()
    array[index] = value
    return array


class EnvWith(gym.Env):
    """An environment with any spaces; nothing here may ever step or reset it."""

    def __init__(self, observation_space=BOX, action_space=ACTION_BOX):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        raise AssertionError("an environment was reset")

    def step(self, action):
        raise AssertionError("an environment was stepped")


def normalized_pendulum():
    return VecNormalize(DummyVecEnv([lambda: gym.make("Pendulum-v1")]))


def data(field, **changes):
    """A case that must fail while the data set is built."""
    return field, lambda tmp_path: make_dataset(**changes)


def model(field, **arguments):
    """A case that must fail in the constructor of the model. Functions are called there, for environments and the like."""

    def build(tmp_path):
        made = {name: value() if isinstance(value, Made) else value for name, value in arguments.items()}
        return make_model(**made)

    return field, build


class Made:
    """Something to make when the case runs, not when the tests are collected."""

    def __init__(self, make):
        self.make = make

    def __call__(self):
        return self.make()


def file(content, name="data.npz"):
    """A case that must fail on loading a file."""

    def load(tmp_path):
        content(tmp_path / name)
        return TransitionDataset.load(tmp_path / name)

    return name, load


def attached(field, method, *arguments):
    """A case that must fail in a method of a model that has its data."""
    return field, lambda tmp_path: getattr(make_model(), method)(*arguments)


def truncated_file(path):
    make_dataset().save(path)
    path.write_bytes(path.read_bytes()[:-50])


nan, inf = np.nan, np.inf

DATA_CASES = {
    # NaN and infinity, in every field
    "observations-nan": data("observations", observations=with_entry("observations", nan)),
    "observations-inf": data("observations", observations=with_entry("observations", inf)),
    "actions-nan": data("actions", actions=with_entry("actions", nan)),
    "actions-minus-inf": data("actions", actions=with_entry("actions", -inf)),
    "rewards-nan": data("rewards", rewards=with_entry("rewards", nan)),
    "rewards-inf": data("rewards", rewards=with_entry("rewards", inf)),
    "next_observations-nan": data("next_observations", next_observations=with_entry("next_observations", nan)),
    "terminals-nan": data("terminals", terminals=np.where(np.arange(N) == 3, nan, 0.0)),
    "timeouts-nan": data("timeouts", timeouts=np.where(np.arange(N) == 3, nan, 0.0)),
    "episode_ids-nan": data("episode_ids", episode_ids=np.where(np.arange(N) == 3, nan, 0.0)),
    # dtypes
    "observations-text": data("observations", observations=np.full((N, 3), "1.0")),
    "observations-object": data("observations", observations=make_arrays()["observations"].astype(object)),
    "observations-complex": data("observations", observations=make_arrays()["observations"] + 0j),
    "observations-none": data("observations", observations=None),
    "observations-dict": data("observations", observations={"s": np.zeros((N, 3))}),
    "actions-object": data("actions", actions=make_arrays()["actions"].astype(object)),
    "actions-bool": data("actions", actions=np.ones((N, 1), dtype=bool)),
    "rewards-bool": data("rewards", rewards=np.ones(N, dtype=bool)),
    "rewards-datetime": data("rewards", rewards=np.zeros(N, dtype="datetime64[s]")),
    "rewards-timedelta": data("rewards", rewards=np.zeros(N, dtype="timedelta64[s]")),
    "rewards-structured": data("rewards", rewards=np.zeros(N, dtype=[("r", float)])),
    "next_observations-bytes": data("next_observations", next_observations=np.full((N, 3), b"1")),
    "terminals-text": data("terminals", terminals=["False"] * N),
    "terminals-none": data("terminals", terminals=None),
    "terminals-value-2": data("terminals", terminals=np.arange(N) % 3),
    "terminals-minus-1": data("terminals", terminals=-np.ones(N, dtype=int)),
    "timeouts-value-2": data("timeouts", timeouts=np.full(N, 2)),
    "episode_ids-float": data("episode_ids", episode_ids=np.zeros(N)),
    "episode_ids-text": data("episode_ids", episode_ids=["first"] * N),
    # shapes
    "observations-ragged": data("observations", observations=[[0.0, 0.0, 0.0]] * (N - 1) + [[0.0, 0.0]]),
    "actions-ragged": data("actions", actions=[[0.0]] * (N - 1) + [[]]),
    "rewards-ragged": data("rewards", rewards=[0.0] * (N - 1) + [[1.0, 2.0]]),
    "terminals-ragged": data("terminals", terminals=[False] * (N - 1) + [[True, False]]),
    "timeouts-ragged": data("timeouts", timeouts=[False] * (N - 1) + [[True, False]]),
    "episode_ids-ragged": data("episode_ids", episode_ids=[0] * (N - 1) + [[1, 2]]),
    "observations-1d": data("observations", observations=np.zeros(N)),
    "observations-3d": data("observations", observations=np.zeros((N, 3, 1))),
    "observations-0d": data("observations", observations=np.array(1.0)),
    "observations-no-columns": data("observations", observations=np.zeros((N, 0)), next_observations=np.zeros((N, 0))),
    "actions-1d": data("actions", actions=np.zeros(N)),
    "actions-no-columns": data("actions", actions=np.zeros((N, 0))),
    "rewards-column": data("rewards", rewards=np.zeros((N, 1))),
    "rewards-0d": data("rewards", rewards=np.array(1.0)),
    "terminals-column": data("terminals", terminals=np.zeros((N, 1), dtype=bool)),
    "terminals-0d": data("terminals", terminals=False),
    "timeouts-column": data("timeouts", timeouts=np.zeros((N, 1), dtype=bool)),
    "episode_ids-column": data("episode_ids", episode_ids=np.zeros((N, 1), dtype=int)),
    "next_observations-too-wide": data("next_observations", next_observations=np.zeros((N, 4))),
    # shapes that do not fit each other
    "actions-too-short": data("actions", actions=np.zeros((N - 1, 1))),
    "rewards-too-long": data("rewards", rewards=np.zeros(N + 1)),
    "next_observations-too-short": data("next_observations", next_observations=np.zeros((N - 1, 3))),
    "terminals-too-short": data("terminals", terminals=np.zeros(N - 1)),
    "timeouts-too-long": data("timeouts", timeouts=np.zeros(N + 1)),
    "episode_ids-too-short": data("episode_ids", episode_ids=np.zeros(N - 1, dtype=int)),
    # too little of it
    "no-transition": data("observations", n=0),
    "one-transition": data("observations", n=1, terminals=[False]),
    "every-transition-terminal": data("terminals", terminals=np.ones(N)),
    # spaces
    "actions-above-the-space": data("actions", action_space=ACTION_BOX, actions=with_entry("actions", 2.01)),
    "actions-below-the-space": data("actions", action_space=ACTION_BOX, actions=with_entry("actions", -2.01)),
    "actions-wider-than-the-space": data("actions", action_space=ACTION_BOX, actions=np.zeros((N, 2))),
    "observations-narrower-than-the-space": data("observations", observation_space=spaces.Box(-9, 9, (4,))),
    "action_space-discrete": data("action_space", action_space=spaces.Discrete(2)),
    "action_space-tuple": data("action_space", action_space=(-2, 2)),
    "observation_space-dict": data("observation_space", observation_space=spaces.Dict(s=BOX)),
}

MODEL_CASES = {
    # the discount
    "gamma-text": model("gamma", gamma="0.9"),
    "gamma-none": model("gamma", gamma=None),
    "gamma-bool": model("gamma", gamma=True),
    "gamma-nan": model("gamma", gamma=nan),
    "gamma-one": model("gamma", gamma=1.0),
    "gamma-negative": model("gamma", gamma=-0.1),
    "gamma-array": model("gamma", gamma=np.array([0.9])),
    "gamma-complex": model("gamma", gamma=np.complex128(0.9)),
    # bandwidths
    "state_bandwidth-zero": model("state_bandwidth", state_bandwidth=0.0),
    "state_bandwidth-negative": model("state_bandwidth", state_bandwidth=-1.0),
    "state_bandwidth-nan": model("state_bandwidth", state_bandwidth=nan),
    "state_bandwidth-inf": model("state_bandwidth", state_bandwidth=[1.0, 1.0, inf]),
    "state_bandwidth-one-zero": model("state_bandwidth", state_bandwidth=[1.0, 0.0, 1.0]),
    "state_bandwidth-wrong-length": model("state_bandwidth", state_bandwidth=[1.0, 1.0]),
    "state_bandwidth-unknown-rule": model("state_bandwidth", state_bandwidth="magic"),
    "state_bandwidth-none": model("state_bandwidth", state_bandwidth=None),
    "action_bandwidth-zero": model("action_bandwidth", action_bandwidth=0),
    "action_bandwidth-wrong-length": model("action_bandwidth", action_bandwidth=[1.0, 1.0]),
    "action_bandwidth-unknown-rule": model("action_bandwidth", action_bandwidth=""),
    "next_state_bandwidth-negative": model("next_state_bandwidth", next_state_bandwidth=-1e-9),
    "state_bandwidth_factor-zero": model("state_bandwidth_factor", state_bandwidth_factor=0),
    "action_bandwidth_factor-negative": model("action_bandwidth_factor", action_bandwidth_factor=-1.0),
    "next_state_bandwidth_factor-text": model("next_state_bandwidth_factor", next_state_bandwidth_factor="large"),
    # counts and tolerances
    "n_neighbors-zero": model("n_neighbors", n_neighbors=0),
    "n_neighbors-negative": model("n_neighbors", n_neighbors=-1),
    "n_neighbors-fraction": model("n_neighbors", n_neighbors=1.5),
    "n_neighbors-text": model("n_neighbors", n_neighbors="many"),
    "n_neighbors-array": model("n_neighbors", n_neighbors=np.array([5, 6])),
    "n_action_samples-zero": model("n_action_samples", n_action_samples=0, variant="S"),
    "n_action_samples-fraction": model("n_action_samples", n_action_samples=1.5),
    "spread_actions-text": model("spread_actions", spread_actions="false", variant="S"),
    "spread_actions-number": model("spread_actions", spread_actions=1),
    "n_next_state_samples-zero": model("n_next_state_samples", n_next_state_samples=0),
    "n_next_state_samples-none": model("n_next_state_samples", n_next_state_samples=None),
    "resample_interval-zero": model("resample_interval", resample_interval=0),
    "keep_largest-zero": model("keep_largest", keep_largest=0),
    "kl_bound-zero": model("kl_bound", kl_bound=0.0),
    "truncation_tolerance-one": model("truncation_tolerance", truncation_tolerance=1.0),
    "solver_tolerance-zero": model("solver_tolerance", solver_tolerance=0.0),
    "final_std_scale-zero": model("final_std_scale", variant="S", policy_kwargs={"final_std_scale": 0.0}),
    "learning_rate-zero": model("learning_rate", learning_rate=0.0),
    "learning_rate-negative": model("learning_rate", learning_rate=-1e-3),
    "learning_rate-nan": model("learning_rate", learning_rate=nan),
    "learning_rate-text": model("learning_rate", learning_rate="fast"),
    # names
    "precision-float16": model("precision", precision="float16"),
    "precision-type": model("precision", precision=np.float64),
    "policy-unknown": model("policy", policy="CnnPolicy"),
    "policy-of-another-algorithm": model("policy", policy=TD3Policy),
    "policy-none": model("policy", policy=None),
    "max_std-zero": model("max_std", variant="S", policy_kwargs={"max_std": 0.0}),
    "max_std-text": model("max_std", variant="S", policy_kwargs={"max_std": "wide"}),
    "initial_gain-shape": model("initial_gain", policy="LinearPolicy", policy_kwargs={"initial_gain": [[1.0]]}),
    "initial_gain-text": model("initial_gain", policy="LinearPolicy", policy_kwargs={"initial_gain": "zero"}),
    "std-zero": model("std", policy="LinearPolicy", variant="S", policy_kwargs={"std": 0.0}),
    "std-wrong-length": model("std", policy="LinearPolicy", variant="S", policy_kwargs={"std": [0.1, 0.1]}),
    # environments
    "env-discrete-actions": model("action_space", env="CartPole-v1"),
    "env-multi-binary-actions": model("action_space", env=Made(lambda: EnvWith(action_space=spaces.MultiBinary(2)))),
    "env-unbounded-actions": model("action_space", env=Made(lambda: EnvWith(action_space=spaces.Box(-inf, inf, (1,))))),
    "env-action-without-range": model(
        "action_space",
        env=Made(lambda: EnvWith(action_space=spaces.Box(np.array([-2.0, 1.0]), np.array([2.0, 1.0]), dtype=np.float64))),
        dataset=make_dataset(actions=np.column_stack([make_arrays()["actions"], np.ones(N)])),
    ),
    "env-dict-observations": model("observation_space", env=Made(lambda: EnvWith(spaces.Dict(s=BOX)))),
    "env-dict-observations-linear": model(
        "observation_space", env=Made(lambda: EnvWith(spaces.Dict(s=BOX))), policy="LinearPolicy"
    ),
    "env-images": model("observation_space", env=Made(lambda: EnvWith(spaces.Box(0, 255, (32, 32, 3), dtype=np.uint8)))),
    "env-discrete-observations": model("observation_space", env=Made(lambda: EnvWith(spaces.Discrete(5)))),
    "env-vecnormalize": model("env", env=Made(normalized_pendulum)),
    "env-none-without-data": model("env", env=None, dataset=None),
    # the data set
    "dataset-dict": model("dataset", dataset=make_arrays()),
    "dataset-dict-without-env": model("dataset", env=None, dataset=make_arrays()),
    "dataset-replay-buffer": model("dataset", dataset=Made(lambda: FixedReplayBuffer(make_dataset(), BOX, ACTION_BOX))),
    "dataset-path": model("dataset", dataset="data.npz"),
    "dataset-of-another-environment": model("observations", env="MountainCarContinuous-v0"),
    "dataset-with-more-actions": model("actions", dataset=make_dataset(actions=np.zeros((N, 2)))),
    "dataset-with-actions-outside": model("actions", dataset=make_dataset(actions=with_entry("actions", 2.5))),
    "dataset-with-constant-actions-without-env": model("actions", env=None, dataset=make_dataset(actions=np.ones((N, 1)))),
    "dataset-with-unbounded-actions-without-env": model(
        "action_space", env=None, dataset=make_dataset(action_space=spaces.Box(-inf, inf, (1,)))
    ),
    "dataset-with-an-action-without-range": model(
        "action_space", env=None, dataset=make_dataset(actions=np.ones((N, 1)), action_space=spaces.Box(1, 1, (1,)))
    ),
    "dataset-without-episodes-without-env": model("initial_states", env=None, dataset=make_dataset(episode_ids=None)),
    # start states
    "initial_states-empty": model("initial_states", initial_states=[]),
    "initial_states-no-rows": model("initial_states", initial_states=np.zeros((0, 3))),
    "initial_states-nan": model("initial_states", initial_states=[[nan, 0.0, 0.0]]),
    "initial_states-too-wide": model("initial_states", initial_states=np.zeros((2, 4))),
    "initial_states-3d": model("initial_states", initial_states=np.zeros((1, 2, 3))),
    "initial_states-number": model("initial_states", initial_states=0.0),
    "initial_states-text": model("initial_states", initial_states=["hanging", "upright"]),
    "initial_states-ragged": model("initial_states", initial_states=[[0.0, 0.0, 0.0], [0.0]]),
    "initial_states-object": model("initial_states", initial_states=np.array([[0, 0, 0]], dtype=object)),
}

OTHER_CASES = {
    "file-text": file(lambda path: path.write_text("hello")),
    "file-empty": file(lambda path: path.write_bytes(b"")),
    "file-truncated": file(truncated_file),
    "file-of-others": file(lambda path: np.savez(path, states=np.zeros((5, 3)), actions=np.zeros((5, 1)))),
    "set_dataset-none": attached("dataset", "set_dataset", None),
    "set_dataset-dict": attached("dataset", "set_dataset", make_arrays()),
    "value-of-nan": attached("observations", "value", np.full((2, 3), nan)),
    "value-of-nothing": attached("observations", "value", np.zeros((0, 3))),
    "value-too-wide": attached("observations", "value", np.zeros((2, 4))),
    "support-too-many-actions": attached("action", "support", np.zeros((2, 3)), np.zeros((3, 1))),
    "buffer-empty": (
        "replay_buffer|observations",
        lambda tmp_path: TransitionDataset.from_replay_buffer(ReplayBuffer(9, BOX, ACTION_BOX)),
    ),
    "buffer-dict": (
        "replay_buffer",
        lambda tmp_path: TransitionDataset.from_replay_buffer(DictReplayBuffer(9, spaces.Dict(s=BOX), ACTION_BOX)),
    ),
    "buffer-that-is-none": ("replay_buffer", lambda tmp_path: TransitionDataset.from_replay_buffer(None)),
}

CASES = {**DATA_CASES, **MODEL_CASES, **OTHER_CASES}


def forbid(name):
    def forbidden(*args, **kwargs):
        raise AssertionError(f"{name} was called: the error came too late")

    return forbidden


@pytest.mark.parametrize(("field", "run"), CASES.values(), ids=CASES.keys())
def test_bad_input_is_refused_by_name_with_advice_before_any_work(field, run, tmp_path, monkeypatch):
    # Cases about a model fail while it is built; a model that is attached to its data may prepare and solve.
    monkeypatch.setattr(NOPG, "learn", forbid("learn"))
    if (field, run) in MODEL_CASES.values():
        monkeypatch.setattr(sb3_nopg.prediction.estimator, "build_problem", forbid("build_problem"))
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is looked at below
        run(tmp_path)
    message = str(caught.value)
    subject, _, rest = message.partition(": ")
    assert re.search(rf"(^|\W)({field})$", subject), f"does not name {field} first: {message}"
    # A problem of two words or more, then an advice of two words or more, each a sentence.
    assert re.match(r"\S+ .*?\. [A-Z]\S* .*\.$", rest, re.DOTALL), f"does not say what is wrong, then what to do: {message}"


def test_enough_cases():
    assert len(CASES) >= 40


@pytest.mark.slow
def test_the_input_that_cases_spoil_is_good():
    """Otherwise a case could fail for a reason that is not its own."""
    for env in ("Pendulum-v1", None, EnvWith()):
        assert make_model(env).learn(1).num_timesteps == 1


# --- input that looks odd, and is fine


def test_actions_beyond_their_bound_by_rounding_are_accepted():
    actions = make_arrays()["actions"]
    actions[0], actions[1] = 2.0 + 1e-7, -2.0 - 1e-7
    dataset = make_dataset(actions=actions, action_space=ACTION_BOX)
    buffer = make_model(dataset=dataset).replay_buffer
    assert np.abs(buffer.actions).max() == 1.0
    # The data keep what was recorded.
    assert dataset.actions.max() == 2.0 + 1e-7


@pytest.mark.parametrize(
    "actions",
    [
        np.linspace(-1 / 3, 1 / 7, N),
        np.linspace(273.15, 274.85, N),
        # float32 has steps of 6e-5 here, a larger part of the range than anyone would call rounding.
        np.linspace(1000.00004, 1000.5, N),
        np.linspace(-0.1, 1e-12, N),
        np.linspace(0.1, 0.3, N).astype(np.float32),
    ],
    ids=["thirds", "kelvin", "far-from-zero", "around-zero", "float32"],
)
def test_actions_fit_the_space_that_is_made_of_their_range(actions):
    dataset = make_dataset(actions=actions[:, None])
    _, action_space = spaces_of(dataset)
    assert action_space.low[0] == pytest.approx(actions.min(), rel=1e-6)
    assert action_space.high[0] == pytest.approx(actions.max(), rel=1e-6)
    assert make_model(env=None, dataset=dataset).replay_buffer.size() == N


def test_lists_and_whole_numbers_are_accepted():
    whole = np.arange(3 * N).reshape(N, 3) % 7
    dataset = make_dataset(
        observations=whole.tolist(), next_observations=whole, rewards=list(range(N)), terminals=[0, 1] * (N // 2)
    )
    model = make_model(env=None, dataset=dataset, initial_states=[1, 2, 3])
    assert model.learn(1).num_timesteps == 1


@pytest.mark.parametrize("n_neighbors", [N + 1, 10**6, np.int64(N + 1)], ids=["one-more", "million", "numpy"])
def test_more_neighbors_than_samples_are_clipped_with_a_warning(n_neighbors):
    with pytest.warns(UserWarning, match=rf"n_neighbors={n_neighbors} .*{N} samples"):
        model = make_model(n_neighbors=n_neighbors)
    everything = make_model(n_neighbors=None)
    assert model.estimator.problem.queries.neighbors.n_neighbors == N
    assert model.estimated_return() == pytest.approx(everything.estimated_return(), rel=1e-6)
    model.learn(1)


@pytest.mark.parametrize("n_neighbors", [1, N])
def test_as_many_neighbors_as_samples_need_no_warning(n_neighbors):
    assert make_model(n_neighbors=n_neighbors).estimator.problem.queries.neighbors.n_neighbors == n_neighbors


# --- nothing is lost


def parameters_of(model):
    return th.nn.utils.parameters_to_vector(model.policy.parameters()).detach().clone()


@pytest.mark.parametrize(
    "bad",
    [
        None,
        make_arrays(),
        make_dataset(actions=np.zeros((N, 2))),
        make_dataset(actions=np.full((N, 1), 2.5)),
        make_dataset(observations=np.zeros((N, 2)), next_observations=np.zeros((N, 2))),
    ],
    ids=["none", "dict", "two-actions", "actions-outside", "two-states"],
)
def test_a_refused_data_set_leaves_the_old_one_in_use(bad):
    model = make_model().learn(2)
    kept = {name: getattr(model, name) for name in ("dataset", "replay_buffer", "bandwidths", "env")}
    parameters, estimate = parameters_of(model), model.estimated_return()
    normalization = model.policy.observation_mean.clone()
    with pytest.raises(InputError):
        model.set_dataset(bad)
    assert all(getattr(model, name) is value for name, value in kept.items())
    assert th.equal(parameters_of(model), parameters)
    assert th.equal(model.policy.observation_mean, normalization)
    assert model.estimated_return() == pytest.approx(estimate, rel=1e-9)
    model.learn(1)
    assert not th.equal(parameters_of(model), parameters)


def test_bandwidths_that_do_not_suit_the_new_data_leave_the_old_in_use():
    """Numbers are checked when data come, and by then a model may have been at work for long."""
    model = make_model().learn(1)
    kept = {name: getattr(model, name) for name in ("dataset", "replay_buffer", "bandwidths")}
    model.estimator_kwargs = {"state_bandwidth": [1.0, -1.0, 1.0]}
    with pytest.raises(InputError, match="state_bandwidth"):
        model.set_dataset(make_dataset(rewards=np.ones(N)))
    assert all(getattr(model, name) is value for name, value in kept.items())
    model.learn(1)


def test_without_data_learn_says_so_and_what_to_do():
    model = make_model(dataset=None)
    before = parameters_of(model)
    with pytest.raises(InputError, match=r"dataset: .*set_dataset\(\)"):
        model.learn(1)
    assert th.equal(parameters_of(model), before)
    assert model.num_timesteps == 0
    model.set_dataset(make_dataset())
    assert model.learn(1).num_timesteps == 1


def test_without_an_environment_new_data_must_tell_the_start_states_too():
    """The stand-in for a missing environment knows no start states: only the data do."""
    model = make_model(env=None)
    with pytest.raises(InputError, match="initial_states"):
        model.set_dataset(make_dataset(episode_ids=None))
    assert model.dataset.episode_ids is not None


def test_changing_the_callers_start_states_changes_nothing():
    initial_states = np.zeros((2, 3))
    model = make_model(initial_states=initial_states)
    initial_states[:] = np.nan
    expected = make_model(initial_states=np.zeros((2, 3))).estimated_return()
    assert model.estimated_return() == pytest.approx(expected, rel=1e-9)


# --- numbers that explode


@pytest.mark.parametrize(("learning_rate", "n_updates"), [(1e30, 1), (1e30, 2), (1e30, 5), (1e39, 1)])
def test_a_learning_rate_that_explodes_is_told(learning_rate, n_updates):
    """Also when the last update did it: a policy that answers NaN must not come back from learn() as if it were fine."""
    with pytest.raises((SolverError, InputError), match="learning_rate"):
        make_model(learning_rate=learning_rate).learn(n_updates)


@pytest.mark.parametrize("ask", ["learn", "estimated_return", "policy_gradient"])
def test_a_policy_that_is_nan_is_told_as_such(ask):
    model = make_model()
    with th.no_grad():
        for parameter in model.policy.parameters():
            parameter.fill_(nan)
    with pytest.raises(SolverError, match="not finite"):
        getattr(model, ask)()


@pytest.mark.parametrize("name", NAMES)
def test_settings_that_moved_say_where_to(name: str):
    with pytest.raises(InputError, match=rf"{name}: .*estimator_kwargs=.*{name}"):
        NOPG("MlpPolicy", "Pendulum-v1", dataset=make_dataset(), **{name: 1})


@pytest.mark.parametrize(
    ("old", "value", "said"),
    [
        ("variant", "S", "NOPGS"),
        ("final_std_scale", 0.1, r"policy_kwargs=\{.final_std_scale"),
        ("n_steps", 5, "Leave it out"),
        ("n_attempts", 3, "Leave it out"),
        ("n_restarts", 3, "Leave it out"),
        ("value_iteration_start", True, "Leave it out"),
    ],
)
def test_arguments_of_earlier_versions_say_what_took_their_place(old, value, said):
    with pytest.raises(InputError, match=rf"{old}: .*{said}"):
        NOPG("MlpPolicy", "Pendulum-v1", dataset=make_dataset(), **{old: value})
    with pytest.raises(TypeError, match="no argument 'colour'"):
        NOPG("MlpPolicy", "Pendulum-v1", dataset=make_dataset(), colour="red")


def test_files_of_the_version_before_are_refused_with_its_name(tmp_path):
    make_model().save(tmp_path / "model.zip")
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    settings = json.loads(parts["data"])
    del settings["estimator_kwargs"]
    with zipfile.ZipFile(tmp_path / "old.zip", "w") as archive:
        for name, content in {**parts, "data": json.dumps(settings)}.items():
            archive.writestr(name, content)
    for path in (tmp_path / "old.zip", tmp_path / "old"):
        with pytest.raises(InputError, match=r"path: sb3-nopg 0\.1 wrote .*old"):
            NOPG.load(path)
    NOPG.load(tmp_path / "model")
