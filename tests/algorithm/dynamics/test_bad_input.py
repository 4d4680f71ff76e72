"""Settings of a model of the system that cannot be right are told by name in the constructor, before any work."""

import dataclasses
import functools

import numpy as np
import pytest

from helpers.models import make_nopg
from helpers.systems import linear, linear_reward, on_circle, pendulum, pendulum_reward, record
from sb3_nopg import NOPG, DynamicsModel, InputError, Quantities, TransitionDataset, follow


@functools.cache
def recorded() -> TransitionDataset:
    return record(linear, linear_reward)


def make(**settings) -> NOPG:
    return make_nopg("MlpPolicy", None, **{"dataset": recorded(), "seed": 0, "device": "cpu", **settings})


def raises(states, actions, next_states):
    raise RuntimeError("no reward today")


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("transitions", {"transitions": "dreams"}),
        ("transitions", {"transitions": None}),
        ("horizon", {"horizon": -1}),
        ("horizon", {"horizon": 2.5}),
        ("horizon", {"horizon": float("nan")}),
        ("horizon", {"horizon": "long"}),
        ("horizon", {"horizon": True}),
        ("horizon", {"horizon": None}),
        ("model_kwargs", {"model_kwargs": {"n_trees": 5}}),
        ("model_kwargs", {"model_kwargs": {"seed": 5}}),
        ("model_kwargs", {"model_kwargs": {"like": None}}),
        ("model_kwargs", {"model_kwargs": ["angles"]}),
        ("model_kwargs", {"model_kwargs": 5}),
        ("limits", {"model_kwargs": {"limits": {0: (50.0, 60.0)}}}),
        ("limits", {"model_kwargs": {"limits": {5: (0.0, 1.0)}}}),
        ("limits", {"model_kwargs": {"limits": [(0.0, 1.0)]}}),
        ("angles", {"model_kwargs": {"angles": [(0, 1)]}}),
        ("angles", {"model_kwargs": {"angles": [(0, 7)]}}),
        ("angles", {"model_kwargs": {"angles": 3}}),
        ("reward", {"model_kwargs": {"reward": "log(s[0])"}}),
        ("reward", {"model_kwargs": {"reward": raises}}),
        ("reward", {"model_kwargs": {"reward": lambda s, a, s2: s}}),
        ("reward", {"model_kwargs": {"reward": 5}}),
        ("expression", {"model_kwargs": {"reward": "s[9]"}}),
        ("bandwidth", {"model_kwargs": {"bandwidth": -1.0}}),
        ("bandwidth", {"model_kwargs": {"bandwidth": 0}}),
        ("n_earlier_steps", {"model_kwargs": {"n_earlier_steps": 7}}),
        ("n_earlier_steps", {"model_kwargs": {"n_earlier_steps": 0.5}}),
        ("n_nodes", {"model_kwargs": {"n_nodes": 1}}),
        ("n_nodes", {"model_kwargs": {"n_nodes": 80.5}}),
        ("n_nodes", {"model_kwargs": {"n_nodes": 10**9}}),
        ("limits", {"model_kwargs": {"limits": {0: (np.nan, 1.0)}}}),
        ("initial_states", {"initial_states": [[0.9, 0.0]], "model_kwargs": {"limits": {0: (-0.5, 0.5)}}}),
    ],
)
def test_it_is_told_in_the_constructor(field, settings):
    with pytest.raises(InputError) as caught:
        make(**settings)
    assert caught.value.field == field
    # A sentence with what is wrong, and one with what to do.
    assert len(str(caught.value)) > len(field) + 20


def test_too_few_transitions_are_told_in_the_constructor():
    with pytest.raises(InputError, match="too few") as caught:
        make(dataset=record(linear, linear_reward, n_episodes=1, length=6))
    assert caught.value.field == "dataset"


def test_constant_observations_are_told_in_the_constructor():
    data = recorded()
    still = np.ones_like(data.observations)
    with pytest.raises(InputError) as caught:
        make(dataset=TransitionDataset(still, data.actions, data.rewards, still, data.terminals, episode_ids=data.episode_ids))
    assert caught.value.field == "dataset"


@pytest.mark.slow
@pytest.mark.parametrize("n_rows", [8, 12, 20])
def test_a_handful_of_transitions_can_be_learned_from(n_rows):
    """As few as the constructor takes must not fail later."""
    data = record(linear, linear_reward, n_episodes=1, length=n_rows)
    model = make(dataset=data, gamma=0.8, model_kwargs={"n_nodes": 30}, policy_kwargs={"net_arch": [8]})
    model.learn(2)
    assert np.isfinite(model.estimated_return())


def test_data_that_do_not_go_with_the_settings_leave_a_model_as_it_was():
    """As the documentation of set_dataset() has it."""
    data = record(pendulum, pendulum_reward, start=(3.1, 3.0), observe=on_circle)
    model = make(dataset=data, model_kwargs={"angles": [(0, 1)]})
    rng = np.random.default_rng(0)
    states = rng.uniform(-3, 3, size=(60, 3))
    other = TransitionDataset(
        states, rng.uniform(-1, 1, (60, 1)), np.zeros(60), states, np.zeros(60), episode_ids=np.arange(60)
    )
    with pytest.raises(InputError) as caught:
        model.set_dataset(other)
    assert caught.value.field == "angles"
    assert model.dataset is data
    assert model.training_data is data


@pytest.mark.slow
def test_good_settings_are_taken():
    data = record(pendulum, pendulum_reward, start=(3.1, 3.0), observe=on_circle)
    settings = {"angles": [(0, 1)], "limits": {2: (-4.0, None)}, "reward": "s2[0]", "n_nodes": 50, "n_earlier_steps": 1}
    dynamics = make(dataset=data, model_kwargs=settings).dynamics
    assert dynamics.coordinates.angles == ((0, 1),)
    assert dynamics.choices.n_earlier_steps == 1
    assert len(dynamics.nodes) <= 50
    assert dynamics.bounds.limit_columns.tolist() == [2]
    none = make(dataset=data, model_kwargs={"angles": (), "n_nodes": 50, "n_earlier_steps": 0, "bandwidth": np.inf}).dynamics
    assert none.coordinates.angles == ()


def test_a_start_that_differs_where_the_data_never_change_is_told():
    data = recorded()
    flags = np.full((len(data), 1), 3.0)
    columns = (np.hstack([part, flags]) for part in (data.observations, data.next_observations))
    observations, next_observations = columns
    constant = TransitionDataset(
        observations, data.actions, data.rewards, next_observations, data.terminals, episode_ids=data.episode_ids
    )
    with pytest.raises(InputError, match="row 1 has 99 in column 2, which is 3 in all of the data") as caught:
        make(dataset=constant, initial_states=[[0.1, 0.0, 3.0], [0.1, 0.0, 99.0]])
    assert caught.value.field == "initial_states"
    assert make(dataset=constant, initial_states=[0.1, 0.0, 3.0]).initial_states.tolist() == [0.1, 0.0, 3.0]


@pytest.fixture(scope="module")
def fitted() -> DynamicsModel:
    return DynamicsModel.fit(recorded(), n_nodes=50)


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("observations", (np.zeros((3, 3)), np.zeros((3, 1)))),
        ("observations", (np.zeros((3, 1)), np.zeros((3, 1)))),
        ("observations", (np.zeros((0, 2)), np.zeros((0, 1)))),
        ("observations", (np.full((3, 2), np.nan), np.zeros((3, 1)))),
        ("actions", (np.zeros((3, 2)), np.zeros((3, 2)))),
        ("actions", (np.zeros((3, 2)), np.zeros((2, 1)))),
        ("actions", (np.zeros((3, 2)), np.full((3, 1), np.inf))),
        ("actions", (np.zeros((3, 2)), [["left"]] * 3)),
        ("earlier", (np.zeros((3, 2)), np.zeros((3, 1)), np.zeros((2, 3)))),
    ],
)
def test_what_a_model_cannot_predict_from_is_told(fitted, field, arguments):
    with pytest.raises(InputError) as caught:
        fitted.predict(*arguments)
    assert caught.value.field == field


def test_a_prediction_takes_one_state_or_several(fitted):
    several, rewards = fitted.predict(np.zeros((3, 2)), np.ones(3))
    one, reward = fitted.predict(np.zeros(2), np.ones(1))
    np.testing.assert_allclose(one[0], several[0])
    np.testing.assert_allclose(reward[0], rewards[0])
    np.testing.assert_allclose(fitted.predict(np.zeros(2), 1.0)[0], one)


@pytest.mark.parametrize("starts", [np.zeros((1, 5)), [[np.nan, 0.0]], [], "here"])
def test_nodes_are_wanted_at_states(starts):
    with pytest.raises(InputError) as caught:
        DynamicsModel.fit(recorded(), initial_states=starts, n_nodes=50)
    assert caught.value.field == "initial_states"


@pytest.mark.slow
def test_names_are_as_many_as_columns(fitted):
    with pytest.raises(InputError, match="1 names for 2 columns"):
        fitted.describe(["x"])
    assert "nowhere" in DynamicsModel.fit(recorded(), limits={0: (None, None)}, n_nodes=50).describe()


def test_what_is_no_data_set_and_no_model_is_told(fitted):
    for wrong in (lambda: DynamicsModel.fit("data.npz"), lambda: follow(recorded(), lambda seen: seen[:, :1], [0.0, 0.0], 5)):
        with pytest.raises(InputError):
            wrong()


@pytest.mark.slow
def test_angles_go_by_name_too():
    data = record(pendulum, pendulum_reward, start=(3.1, 3.0), observe=on_circle)
    named = dataclasses.replace(
        data, quantities=Quantities(("cos_theta", "sin_theta", "speed"), ("",) * 3, ("torque",), ("",))
    )
    found = DynamicsModel.fit(named, angles=[("cos_theta", "sin_theta")], n_nodes=50)
    assert found.coordinates.angles == ((0, 1),)
    with pytest.raises(InputError, match=r"no pair of columns.*cos_theta"):
        DynamicsModel.fit(named, angles=[("cos", "sin_theta")], n_nodes=50)
