"""Names and units of the data in what is made of it: the model of the system, the report, saved models, exported policies."""

import dataclasses

import gymnasium as gym
import numpy as np
import onnx
import pytest
from gymnasium import spaces

import nopg_envs
from helpers.models import make_nopg
from helpers.systems import on_circle, pendulum, pendulum_reward, record
from sb3_nopg import NOPG, DynamicsModel, InputError, TransitionDataset, judge
from sb3_nopg.data.quantities import Quantities
from sb3_nopg.dynamics.quality_plot import plot_predictions
from sb3_nopg.report.making import make_report

NAMED = Quantities(("cos_theta", "sin_theta", "speed"), ("1", "1", "rad/s"), ("torque",), ("N m",))


@pytest.fixture(scope="module")
def data():
    recorded = record(pendulum, pendulum_reward, n_episodes=8, length=20, observe=on_circle)
    return recorded.named(["cos_theta [1]", "sin_theta [1]", "speed [rad/s]"], ["torque [N m]"])


class Pendulum(gym.Env):
    """Only to be asked what it is."""

    def __init__(self, names=NAMED.observation_names, units=NAMED.observation_units, fastest=50.0):
        self.metadata = {
            "observation_names": names, "observation_units": units, "action_names": ("tau",), "action_units": ("N m",)
        }  # fmt: skip
        high = np.array([1.0, 1.0, fastest], dtype=np.float32)
        self.observation_space, self.action_space = spaces.Box(-high, high), spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        return np.array([1.0, 0.0, 0.0], dtype=np.float32), {}


def nopg(data, env=None):
    return make_nopg("LinearPolicy", env, dataset=data, transitions="samples", state_bandwidth=0.5, seed=0)


def told_by(path):
    texts = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    return texts["observation_names"], texts["observation_units"], texts["action_names"]


def test_a_saved_model_and_its_policy_have_the_names(tmp_path, data):
    nopg(data).save(tmp_path / "model.zip")
    loaded = NOPG.load(tmp_path / "model.zip")
    assert loaded.quantities == NAMED
    expected = ('["cos_theta", "sin_theta", "speed"]', '["1", "1", "rad/s"]', '["torque"]')
    assert told_by(loaded.export(tmp_path / "policy.onnx")) == expected


def test_a_rig_gets_the_names_of_the_environment(tmp_path, data):
    assert told_by(nopg(data, Pendulum()).export(tmp_path / "policy.onnx"))[2] == '["tau"]'


@pytest.mark.slow
def test_an_environment_may_name_its_states_only(tmp_path, data):
    env = Pendulum(units=("1",))
    del env.metadata["action_names"], env.metadata["action_units"]
    model = nopg(dataclasses.replace(data, quantities=None), env)
    report = make_report(model, trajectories=False)
    assert (report.labels, report.action_labels) == (["cos_theta", "sin_theta", "speed"], ["a[0]"])
    expected = ('["cos_theta", "sin_theta", "speed"]', '["", "", ""]', '["action_0"]')
    assert told_by(model.export(tmp_path / "policy.onnx")) == expected


def test_names_that_contradict_the_data_are_not_exported(tmp_path, data):
    with pytest.raises(InputError, match="same order"):
        nopg(data).export(tmp_path / "policy.onnx", observation_names=["sin_theta", "cos_theta", "speed"])


def test_a_step_of_another_length_is_refused(tmp_path, data):
    """A policy learned from 10 steps a second and flown at 50."""
    slow, env = dataclasses.replace(data, quantities=dataclasses.replace(NAMED, control_period_s=0.1)), Pendulum()
    with pytest.raises(InputError, match=r"a step takes 0\.1 s in the data and 0\.02 s in what is asked for"):
        nopg(slow).export(tmp_path / "policy.onnx", control_period_s=0.02)
    env.metadata["control_period_s"] = 0.02
    with pytest.raises(InputError, match=r"a step takes 0\.1 s in the data and 0\.02 s in the environment"):
        nopg(slow, env)


def test_an_environment_with_columns_in_another_order_or_unit_is_refused(data):
    with pytest.raises(InputError, match="the environment sin_theta, cos_theta, speed"):
        nopg(data, Pendulum(names=("sin_theta", "cos_theta", "speed")))
    with pytest.raises(InputError, match="speed in rad/s and the environment in deg/s"):
        nopg(data, Pendulum(units=("1", "1", "deg/s")))


@pytest.mark.parametrize(
    ("env_id", "names", "others", "problem"),
    [
        ("Pendulum", "cos_theta sin_theta theta_dot torque", "sin_theta cos_theta theta_dot torque", "the same order"),
        (
            "Pendulum",
            "cos_theta sin_theta theta_dot_rad_s torque_Nm",
            "cos_theta sin_theta theta_dot_deg_s torque",
            "in deg/s",
        ),
        ("LQR", "x1 x2 u1 u2", "x1 x2 u2 u1", "the same order"),
    ],
)
def test_our_own_environments_know_the_columns_of_a_table(tmp_path, env_id, names, others, problem):
    env = gym.make(f"nopg/{env_id}-v0")
    rows = nopg_envs.rollouts(env, "uniform", n_transitions=30, seed=0)
    n_states = rows["observations"].shape[1]

    def table(head):
        columns, path = head.split(), tmp_path / "own.csv"
        np.savetxt(
            path, np.hstack([rows["observations"], rows["actions"]]), delimiter=",", header=",".join(columns), comments=""
        )
        return TransitionDataset.load(path, obs=columns[:n_states], action=columns[n_states:], reward="none", keep_jumps=True)

    assert nopg(table(names), env).dataset.columns == table(names).columns
    with pytest.raises(InputError, match=problem):
        nopg(table(others), env)


def test_data_without_names_have_those_of_the_environment():
    env = gym.make("nopg/Pendulum-v0")
    model = nopg(TransitionDataset(**nopg_envs.rollouts(env, "uniform", n_transitions=30, seed=0)), env)
    assert model.dataset.columns.observation_labels == ["cos_theta", "sin_theta", "theta_dot [rad/s]"]
    assert model.quantities.action_labels == ["torque [N m]"]


def test_states_beyond_the_bounds_of_the_environment_are_refused(data):
    fastest = float(np.abs(data.observations[:, 2]).max())
    row = int(np.abs(data.observations[:, 2]).argmax())
    sentence = rf"observations: 1 row\(s\) outside the observation space; the first is row {row}, where speed \[rad/s\] is "
    with pytest.raises(InputError, match=sentence):
        nopg(data, Pendulum(fastest=fastest - 1e-3))
    # The last digit of a number that went through float32 is no mistake; the state after a step may lie further out.
    widest = max(fastest, float(np.abs(data.next_observations[:, 2]).max()))
    assert nopg(data, Pendulum(fastest=widest * (1 - 1e-6))).dataset is data


def test_policies_with_columns_in_another_order_are_not_judged(tmp_path, data):
    nopg(data).save(tmp_path / "model.zip")
    nopg(data).export(tmp_path / "policy.onnx")
    swapped = data.named(["sin_theta", "cos_theta", "speed"])
    for policy in (nopg(data), tmp_path / "model.zip", tmp_path / "policy.onnx"):
        with pytest.raises(InputError, match="the policy cos_theta, sin_theta, speed"):
            judge(swapped, {"it": policy}, initial_states=data.observations[:1])


@pytest.mark.slow
def test_the_model_of_the_system_has_the_names(data):
    model = DynamicsModel.fit(data, limits={"speed": (-30.0, 30.0)}, reward="cos_theta - 0.05*torque**2", n_nodes=50)
    told = model.describe()
    assert "coordinates: speed, theta" in told
    assert "the task ends: at the limits of speed" in told
    rewards = model.predict(data.observations[:3], data.actions[:3])[1]
    np.testing.assert_allclose(rewards, data.observations[:3, 0] - 0.05 * data.actions[:3, 0] ** 2, atol=1e-9)
    with pytest.raises(InputError, match=r"'sped' is no column.*cos_theta, sin_theta, speed"):
        DynamicsModel.fit(data, limits={"sped": (-1.0, 1.0)})


@pytest.mark.slow
def test_predicted_angles_are_drawn_as_people_measure_them(data):
    figure = plot_predictions(data, n_episodes=1, n_nodes=50)
    assert [panel.get_ylabel() for panel in figure.axes] == ["speed [rad/s]", "theta [rad]"]
    drawn = figure.axes[1].lines[0].get_ydata()
    begins = np.isclose(data.observations[:, :2], [np.cos(drawn[0]), np.sin(drawn[0])]).all(axis=1)
    assert begins.sum() == 1


@pytest.mark.slow
@pytest.mark.parametrize("order", [[0, 1, 2], [1, 0, 2]], ids=["cosine-first", "sine-first"])
def test_an_angle_counts_from_where_its_cosine_is_one(order):
    recorded = record(pendulum, n_episodes=4, observe=lambda states: on_circle(states)[:, order])
    names = [NAMED.observation_names[column] for column in order]
    model = DynamicsModel.fit(recorded.named(names, ["torque"]), n_nodes=50)
    states = model.coordinates.encode(model.coordinates.fixed.new_tensor(recorded.observations)).numpy()
    cosine, sine = (recorded.observations[:, names.index(name)] for name in ("cos_theta", "sin_theta"))
    np.testing.assert_allclose(model.coordinates.shown(states)[:, -1], np.arctan2(sine, cosine), atol=1e-9)


@pytest.mark.slow
def test_the_report_has_the_names_of_the_data(data):
    report = make_report(nopg(data), limits=["abs(speed) < 40"], trajectories=False)
    assert report.labels == ["cos_theta", "sin_theta", "speed [rad/s]"]
    assert report.action_labels == ["torque [N m]"]
    found = {(one.name, one.unit) for one in report.summary.bandwidths if one.kernel == "action"}
    assert found == {("torque", "N m")}
