"""Names and units of columns: how heads of columns are read, what becomes of them, and when two sides cannot mean the same."""

import dataclasses
import pickle

import numpy as np
import pytest

from helpers.datasets import make_dataset
from sb3_nopg import InputError, TransitionDataset, add_mirror_images
from sb3_nopg.data.column_heads import angle_of, identifier, is_sine, parsed
from sb3_nopg.data.quantities import Quantities, check_same

STATES, ACTIONS = ["position [m]", "theta (rad)", "x_dot_m_s"], ["u_V", "brake"]
NAMED = Quantities(("position", "theta", "x_dot"), ("m", "rad", "m/s"), ("u", "brake"), ("V", ""))


@pytest.mark.parametrize(
    ("head", "name", "unit"),
    [
        ("position [m]", "position", "m"),
        (" theta (rad) ", "theta", "rad"),
        ("speed / (m/s)", "speed", "m/s"),
        ("speed(m/s)", "speed", "m/s"),
        ("u_V", "u", "V"),
        ("theta_dot_rad_s", "theta_dot", "rad/s"),
        ("share [-]", "share", "1"),
        ("sin(theta)", "sin(theta)", ""),
        ("cos (theta)", "cos (theta)", ""),
        ("s[0]", "s[0]", ""),
        ("x", "x", ""),
        ("x_dot", "x_dot", ""),
        ("run_s", "run_s", ""),
        ("_V", "_V", ""),
    ],
)
def test_heads_of_columns(head, name, unit):
    assert parsed(head) == (name, unit)


def test_columns_that_differ_in_their_unit_only_keep_their_heads():
    assert Quantities.of(["x_m", "x_V"], ["u"]).observation_names == ("x_m", "x_V")


@pytest.mark.parametrize("other", ["joint_B", "joint_2", "joint_b"])
def test_an_index_is_no_unit(other):
    found = Quantities.of(["joint_A", other, "x_m", "x_dot_m_s"], ["u_V"])
    assert found.observation_names == ("joint_A", other, "x", "x_dot")
    assert (found.observation_units, found.action_units) == (("", "", "m", "m/s"), ("V",))


@pytest.mark.parametrize(
    ("columns", "angle"),
    [
        (("cos_theta", "sin_theta"), "theta"),
        (("sin_theta", "cos_theta"), "theta"),
        (("cos(q)", "sin(q)"), "q"),
        (("theta_cos", "theta_sin"), "theta"),
        (("cos θ", "sin θ"), "θ"),
        (("cos_a", "sin_b"), None),
        (("cos", "sin"), None),
        (("c", "s"), None),
    ],
)
def test_cosine_and_sine_name_their_angle(columns, angle):
    assert angle_of(*columns) == angle
    if angle is not None:
        assert is_sine(columns[0]) == ("sin" in columns[0])


def test_names_become_words_of_formulas():
    assert [identifier(name) for name in ("cart position", "θ", "2nd", "if", "a-b")] == [
        "cart_position",
        "θ",
        "_2nd",
        "_if",
        "a_b",
    ]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"observation_names": ("x", "x", "v")}, "observation_names"),
        ({"observation_names": ("x", "", "v")}, "observation_names"),
        ({"action_units": ("V",)}, "action_units"),
        ({"observation_names": "xyz"}, "observation_names"),
        ({"action_names": ("u" * 101, "v")}, "action_names"),
    ],
)
def test_names_that_cannot_be_are_refused(changes, field):
    with pytest.raises(InputError, match=f"^{field}"):
        dataclasses.replace(NAMED, **changes)


def test_a_data_set_needs_a_name_for_each_column():
    assert make_dataset(quantities=NAMED).quantities == NAMED
    with pytest.raises(InputError, match="observation_names: 2 name"):
        make_dataset(quantities=Quantities.of(["x", "y"], ["u", "v"]))
    with pytest.raises(InputError, match="quantities: a list"):
        make_dataset(quantities=["x"])


def test_data_without_names_get_numbers():
    assert make_dataset().quantities is None
    assert make_dataset().columns.observation_labels == ["s[0]", "s[1]", "s[2]"]
    assert make_dataset().columns.action_labels == ["a[0]", "a[1]"]


def test_names_survive_all_that_is_done_to_data():
    data = make_dataset(episode_ids=np.arange(12) // 3).named(STATES, ACTIONS)
    made = [
        *data.split((0.5, 0.5)),
        data.subsample(5),
        data.filter("theta > -10"),
        data.relabel("u"),
        TransitionDataset.merge(data, make_dataset()),
        add_mirror_images(data, [-1, -1, -1], [-1, -1]),
        pickle.loads(pickle.dumps(data)),
    ]
    assert [one.quantities for one in made] == [NAMED] * len(made)
    assert "position [m]" in repr(data)


def test_only_what_is_given_is_renamed():
    data = make_dataset().named(STATES, ACTIONS).named(action_names=["force [N]", "brake"])
    assert data.quantities == dataclasses.replace(NAMED, action_names=("force", "brake"), action_units=("N", ""))


def test_pure_numbers_stay_pure_numbers_when_others_are_renamed():
    data = make_dataset().named(["share [1]", "x [m]", "y_m [1]"], ["gain [1]", "brake"])
    assert data.named(action_names=["u [V]", "w"]).quantities.observation_units == ("1", "m", "1")
    assert data.named(["a", "b", "c"]).quantities.action_units == ("1", "")


def test_a_scaled_column_has_a_unit_that_nobody_has_named():
    scaled = make_dataset().named(STATES, ACTIONS).with_units(observation_scale=[1000, 1, 1])
    assert scaled.quantities == dataclasses.replace(NAMED, observation_units=("", "rad", "m/s"))


def test_formulas_use_the_names_of_the_data():
    data = make_dataset().named(STATES, ACTIONS)
    found = data.relabel("next_theta - 2 * position + u_V * brake").rewards
    expected = data.next_observations[:, 1] - 2 * data.observations[:, 0] + data.actions[:, 0] * data.actions[:, 1]
    np.testing.assert_allclose(found, expected)


def test_formulas_find_a_column_by_its_own_name_first():
    data = make_dataset().named(["x_1 [m]", "x [1]", "y [m]"], ["y_m", "u [V]"])
    np.testing.assert_array_equal(data.relabel("x_1").rewards, data.observations[:, 0])
    np.testing.assert_array_equal(data.relabel("next_x_1 + x").rewards, data.next_observations[:, 0] + data.observations[:, 1])
    np.testing.assert_array_equal(data.relabel("y_m").rewards, data.actions[:, 0])
    np.testing.assert_array_equal(data.relabel("next_y_m").rewards, data.next_observations[:, 2])


def test_environments_may_name_states_or_actions_only():
    told = {"observation_names": ("x", "v"), "observation_units": ("m",)}
    found = Quantities.told_by(told, 2, 1)
    assert found == Quantities(("x", "v"), ("", ""), ("a[0]",), ("",))
    own = Quantities.of(["p [m]", "q"], ["u [V]"])
    assert Quantities.told_by(told, 2, 1, own).action_labels == ["u [V]"]
    assert Quantities.told_by({"action_names": ("w",)}, 2, 1, own).observation_labels == ["p [m]", "q"]
    assert Quantities.told_by(told, 3, 1, own) is None


def test_a_column_called_like_a_part_of_formulas_does_not_hide_it():
    data = make_dataset().named(["s", "r", "x"], ["a", "b"])
    np.testing.assert_array_equal(data.relabel("s[1] + r").rewards, data.observations[:, 1] + data.rewards)


def test_data_with_other_columns_are_not_merged():
    with pytest.raises(InputError, match="position, theta"):
        TransitionDataset.merge(make_dataset().named(STATES, ACTIONS), make_dataset().named(["a", "b", "c"], ACTIONS))


def test_columns_in_another_order_or_unit_are_refused():
    swapped = dataclasses.replace(NAMED, observation_names=("theta", "position", "x_dot"))
    with pytest.raises(InputError, match="same order"):
        check_same("dataset", NAMED, "the data", swapped, "the environment")
    degrees = dataclasses.replace(NAMED, observation_units=("m", "°", "m/s"))
    with pytest.raises(InputError, match="theta in rad and the environment in °"):
        check_same("dataset", NAMED, "the data", degrees, "the environment")


@pytest.mark.parametrize("units", [("metres", "radians", "m s^-1"), ("", "rad", "m/s"), ("furlong", "rad", "m/s")])
def test_units_that_may_be_the_same_are_not(units):
    check_same("dataset", NAMED, "the data", dataclasses.replace(NAMED, observation_units=units), "the environment")
    others = dataclasses.replace(NAMED, observation_names=("a", "b", "c"))
    check_same("dataset", NAMED, "the data", others, "the environment")
