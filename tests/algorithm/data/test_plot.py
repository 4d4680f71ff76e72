"""The picture of a data set: a panel for each column, with its name and unit, episodes apart and ends marked."""

import numpy as np
import pytest

from helpers.data_files import trajectories
from helpers.datasets import make_arrays, make_dataset
from sb3_nopg import InputError, TransitionDataset
from sb3_nopg.data.plot import plot_data


def data(n_states, n_actions=1, n=60, **fields):
    return TransitionDataset(**{**make_arrays(n, n_states, n_actions), **fields})


@pytest.mark.slow
@pytest.mark.parametrize(("n_states", "n_actions"), [(1, 1), (4, 1), (12, 3)])
def test_each_column_has_a_panel(n_states, n_actions):
    figure = plot_data(data(n_states, n_actions, episode_ids=np.arange(60) // 20))
    labels = [panel.get_ylabel() for panel in figure.axes]
    assert labels[:-1] == [*(f"s[{i}]" for i in range(n_states)), *(f"a[{i}]" for i in range(n_actions)), "reward"]
    assert len(figure.axes[0].collections[0].get_segments()) == 3


def test_names_units_and_ends_are_shown():
    terminals = np.arange(60) == 19
    dataset = data(2, terminals=terminals, episode_ids=np.arange(60) // 20).named(["x [m]", "theta_rad"], ["u [V]"])
    figure = plot_data(dataset)
    assert [panel.get_ylabel() for panel in figure.axes] == ["x [m]", "theta [rad]", "u [V]", "reward", "theta [rad]"]
    _, ended, cut = figure.axes[0].collections
    np.testing.assert_allclose(ended.get_offsets(), [[19, dataset.observations[19, 0]]])
    np.testing.assert_allclose(cut.get_offsets()[:, 1], dataset.observations[[39, 59], 0])
    assert "3 episodes" in figure.get_suptitle()


def test_actions_are_drawn_as_they_are_held():
    dataset = data(1, episode_ids=np.zeros(60, dtype=int))
    line = plot_data(dataset).axes[1].collections[0].get_segments()[0]
    np.testing.assert_allclose(line[:3], [[0, dataset.actions[0, 0]], [1, dataset.actions[0, 0]], [1, dataset.actions[1, 0]]])


@pytest.mark.slow
def test_samples_without_episodes_are_histograms():
    figure = plot_data(data(2).named(["x [m]", "v"], ["u"]))
    assert figure.axes[0].get_xlabel() == "x [m]"
    assert sum(bar.get_height() for bar in figure.axes[0].patches) == 60


def test_of_many_episodes_some_are_drawn():
    figure = plot_data(data(1, n=600, episode_ids=np.arange(600) // 3))
    assert len(figure.axes[0].collections[0].get_segments()) == 100
    assert "200 episodes, 100 of them drawn" in figure.get_suptitle()


@pytest.mark.slow
@pytest.mark.parametrize(
    "dataset",
    [
        trajectories((4, 3)),
        make_dataset(),
        make_dataset(observations=np.zeros((12, 3)), actions=np.zeros((12, 2)), rewards=np.zeros(12)),
        make_dataset(observations=np.arange(12.0)[:, None], next_observations=np.zeros((12, 1))),
        make_dataset(
            observations=np.where(np.arange(36).reshape(12, 3) % 2, 1.7e308, -1.7e308),
            rewards=np.where(np.arange(12) == 3, 1.0, np.nextafter(1, 2)),
        ),
    ],
    ids=["episodes", "samples", "constant", "one-dimension", "extreme"],
)
def test_plot_makes_a_picture_of_any_data(tmp_path, dataset):
    plot_data(dataset, tmp_path / "picture.png")
    assert [file.name for file in tmp_path.iterdir()] == ["picture.png"]
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_plot_refuses_other_endings(tmp_path):
    with pytest.raises(InputError, match=r"\.png, \.pdf, \.svg"):
        plot_data(make_dataset(), tmp_path / "picture.doc")
    assert list(tmp_path.iterdir()) == []
