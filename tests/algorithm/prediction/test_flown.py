"""Predicted against flown, on a system that is known."""

import re

import numpy as np
import pytest

from helpers.systems import on_circle, pendulum, pendulum_reward, record
from sb3_nopg import DynamicsModel, TransitionDataset
from sb3_nopg.common.errors import InputError
from sb3_nopg.dynamics.quality import fit_without
from sb3_nopg.prediction import flown_picture, promised_errors
from sb3_nopg.prediction.flown import MOST_NOISE_SCALE, FlownAgainstPredicted, flown_against_predicted
from sb3_nopg.prediction.flown_picture import plot_flown
from sb3_nopg.prediction.promised_errors import PromisedErrors

pytestmark = pytest.mark.slow


def mass(n_episodes, seed, *, damping=0.5, length=60):
    """A mass that is pushed at random, with a little noise on its speed."""
    rng = np.random.default_rng(seed)
    rows, ids = [], []
    for episode in range(n_episodes):
        state = rng.normal(size=2)
        for _ in range(length):
            action = rng.uniform(-1, 1, size=1)
            after = state + 0.1 * np.array([state[1], action[0] - damping * state[1]]) + [0.0, 0.01 * rng.normal()]
            rows.append((state, action, after))
            ids.append(episode)
            state = after
    states, actions, nexts = (np.array(column) for column in zip(*rows, strict=True))
    ends = np.append(np.diff(ids) != 0, True)
    never = np.zeros(len(ids), dtype=bool)
    return TransitionDataset(states, actions, -(states**2).sum(axis=1), nexts, never, timeouts=ends, episode_ids=np.array(ids))


def pole(n_episodes, seed, *, balanced, gravity=9.0):
    """A pole with a little noise on its speed: pushed at random, hanging or let go at the top, or held up there."""
    rng = np.random.default_rng(seed)
    rows, ids = [], []
    for episode in range(n_episodes):
        is_up = balanced or episode % 2 == 0
        angle, speed = rng.normal(scale=0.2) + (0.0 if is_up else np.pi), 0.0
        for _ in range(30):
            push = np.clip(-6 * angle - 2 * speed + 0.3 * rng.normal(), -1, 1) if balanced else rng.uniform(-1, 1)
            after = speed + 0.04 * (gravity * np.sin(angle) + 8 * push) + 0.01 * rng.normal()
            rows.append(((angle, speed), (push,), (angle + 0.04 * after, after)))
            ids.append(episode)
            angle, speed = rows[-1][2]
    states, actions, nexts = (np.array(column) for column in zip(*rows, strict=True))
    ends, never = np.append(np.diff(ids) != 0, True), np.zeros(len(ids), dtype=bool)
    return TransitionDataset(states, actions, np.cos(states[:, 0]), nexts, never, timeouts=ends, episode_ids=np.array(ids))


@pytest.fixture(scope="module")
def learned_from():
    return mass(12, seed=0)


@pytest.fixture(scope="module")
def model(learned_from):
    return DynamicsModel.fit(learned_from)


@pytest.fixture(scope="module")
def promised(model, learned_from):
    return PromisedErrors(model, learned_from)


def test_a_model_of_the_same_system_was_right_about_itself(promised):
    compared = flown_against_predicted(promised, {"flight-01": mass(3, seed=1)})
    assert all(0.6 < ratio < 1.5 for ratio in compared.ratios)
    assert compared.contradicting == ()
    assert compared.noise_scale == 1.0
    assert "about what it had promised" in compared.text()


def test_a_system_that_has_changed_contradicts_it(promised):
    compared = flown_against_predicted(promised, {"flight-01": mass(3, seed=1, damping=2.0)})
    assert compared.contradicting == ("flight-01",)
    assert 1.0 < compared.noise_scale <= MOST_NOISE_SCALE
    assert "flight-01 contradicts the model, and its noise is raised" in compared.text()


def test_where_errors_grow_more_are_promised():
    """Held up, where a second multiplies errors by twenty, though the data are mostly of other places."""
    data = pole(24, seed=0, balanced=False)
    promised = PromisedErrors(DynamicsModel.fit(data, n_earlier_steps=0, bandwidth=0.5), data)
    up, down = pole(6, seed=1, balanced=True), data.filter(np.asarray(data.observations)[:, 0] > 2.0)
    compared = flown_against_predicted(promised, {"flight-01": up, "hanging": down}, steps=(25,))
    assert compared.promised["flight-01"][0] > 2.0 * compared.promised["hanging"][0]
    assert compared.contradicting == ()
    other = {"heavier": pole(6, seed=1, balanced=True, gravity=12.0)}
    assert flown_against_predicted(promised, other, steps=(25,)).contradicting == ("heavier",)


def test_one_flight_that_contradicts_is_not_outvoted(promised):
    """Merged with the others it would not have been noticed."""
    good, bad = {f"flight-0{seed}": mass(3, seed=seed) for seed in (1, 2)}, mass(1, seed=3, damping=0.62)
    merged = flown_against_predicted(promised, {"all": TransitionDataset.merge(*good.values(), bad)})
    assert merged.contradicting == ()
    compared = flown_against_predicted(promised, {**good, "explore-01": bad})
    assert compared.contradicting == ("explore-01",)
    assert compared.ratios == compared.ratios_of("explore-01")
    assert compared.noise_scale == pytest.approx(np.prod(compared.ratios) ** (1 / 3))
    assert compared.text().endswith(
        f"explore-01 contradicts the model, and its noise is raised to {compared.noise_scale:.2g} times what it was."
    )
    assert re.search(r"flight-01 [\d.]+ times after 1 step, .*; flight-02 .*; explore-01 ", compared.text())


def test_short_flights_tell_what_they_can(promised):
    flights = {"flight-01": mass(3, seed=1, length=20), "flight-02": mass(1, seed=2, length=2)}
    compared = flown_against_predicted(promised, flights)
    assert compared.ratios[2] is None
    assert compared.ratios[1] is not None
    assert compared.ratios_of("flight-02")[1:] == (None, None)
    assert "too short" in flown_against_predicted(promised, {"none": mass(1, seed=2, length=2)}, steps=(5,)).text()


def test_a_flight_without_its_past_is_not_blamed_for_it(learned_from):
    remembers = DynamicsModel.fit(learned_from, n_earlier_steps=2)
    flights = {"flight-01": mass(1, seed=1), "cut off": mass(1, seed=2, length=2)}
    compared = flown_against_predicted(PromisedErrors(remembers, learned_from), flights)
    assert compared.ratios_of("cut off") == (None, None, None)
    assert compared.ratios == compared.ratios_of("flight-01")


@pytest.mark.parametrize(("damping", "least", "most"), [(0.5, 0.0, 0.12), (2.0, 0.3, 1.0)])
def test_the_band_is_as_wide_as_the_errors_that_were_promised(promised, damping, least, most):
    recorded, low, high = promised.band(mass(1, seed=1, damping=damping))
    assert np.isfinite(low[1:]).all()
    shares = ((recorded < low) | (recorded > high))[1:].mean(axis=0)
    # A damping is seen in the speed first.
    assert least <= shares[1] <= most
    assert shares[0] <= most


def test_no_band_beyond_what_left_out_episodes_tell(model):
    recorded, low, high = PromisedErrors(model, mass(12, seed=0, length=12)).band(mass(1, seed=1))
    assert recorded.shape == (61, 2)
    is_told = np.isfinite(low) & np.isfinite(high)
    assert is_told[1:11].all()
    assert not is_told[12:51].any()
    # It is predicted again from the fiftieth state on.
    assert is_told[51:].all()


def test_the_band_is_of_steps_that_follow_each_other(promised):
    two = [mass(1, seed=seed, length=30) for seed in (1, 2)]
    one_by_one = TransitionDataset.merge(*two)
    order, columns = np.arange(60).reshape(2, 30).T.ravel(), ("observations", "actions", "rewards", "next_observations")
    in_turns = TransitionDataset(
        *(getattr(one_by_one, name)[order] for name in columns),
        np.zeros(60, dtype=bool),
        timeouts=one_by_one.timeouts[order],
        episode_ids=one_by_one.episode_ids[order],
    )
    assert len(promised.band(one_by_one)[0]) == 31
    assert len(promised.band(in_turns)[0]) == 2


def test_an_angle_is_beside_its_band_across_the_end_of_its_range():
    data = record(pendulum, pendulum_reward, start=(3.1, 3.0), observe=on_circle)
    model = DynamicsModel.fit(data, n_nodes=80, bandwidth=0.7, n_earlier_steps=0)
    recorded, low, high = PromisedErrors(model, data).band(data)
    known = np.isfinite(low)
    assert known.sum() > 10
    assert ((low <= recorded) & (recorded <= high))[known].mean() > 0.8


def test_a_picture_has_the_flights_and_what_of_them_has_a_band(model, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(flown_picture, "save_picture", lambda figure, path: drawn.append(figure))
    short = mass(12, seed=0, length=12)
    flights = {f"flight-0{number}": mass(1, seed=number, damping=2.0 if number == 1 else 0.5) for number in range(1, 6)}
    plot_flown(PromisedErrors(model, short), flights, tmp_path / "flown.png", period_s=0.1)
    titles = [panel.get_title() for panel in drawn[0].axes if panel.get_title()]
    # Where there are many, the worst are drawn, in the order of their names.
    assert len(titles) == 4
    assert titles == sorted(titles)
    (changed,) = (title for title in titles if title.startswith("flight-01: "))
    shares = [int(re.search(r"(\d+) % flown outside", title)[1]) for title in titles]
    assert shares[titles.index(changed)] == max(shares) > 50
    assert "of 5 flights the worst 4" in drawn[0].get_suptitle()


def test_the_picture_is_drawn(promised, tmp_path):
    picture = plot_flown(promised, {"flight-01": mass(1, seed=1)}, tmp_path / "flown.png", period_s=0.1)
    assert picture.stat().st_size > 10_000


def test_numbers_and_picture_share_a_fit(model, learned_from, tmp_path, monkeypatch):
    fitted = []
    monkeypatch.setattr(promised_errors, "fit_without", lambda *about: fitted.append(about) or fit_without(*about))
    promised, flights = PromisedErrors(model, learned_from), {"flight-01": mass(1, seed=1)}
    flown_against_predicted(promised, flights)
    plot_flown(promised, flights, tmp_path / "flown.png", period_s=0.1)
    assert len(fitted) == 1


def test_noise_is_raised_as_asked(model, learned_from):
    louder = DynamicsModel.fit(learned_from, noise_scale=2.0)
    np.testing.assert_allclose(louder.noise.numpy(), 2.0 * model.noise.numpy())
    with pytest.raises(InputError, match="noise_scale"):
        DynamicsModel.fit(learned_from, noise_scale=-1.0)


def test_noise_is_raised_by_what_fits_all_numbers_of_steps_best():
    def compared(*ratios):
        return FlownAgainstPredicted(
            (1, 10, 50), {"one": ratios, "other": (1.0, 1.0, 1.0)}, dict.fromkeys(("one", "other"), (1.0,) * 3)
        )

    assert compared(1.0, 1.0, 8.0).noise_scale == pytest.approx(2.0)
    assert compared(20.0, 20.0, 20.0).noise_scale == MOST_NOISE_SCALE
    # One step was said to be worse than it is.
    assert compared(0.2, 1.0, 2.0).noise_scale == 1.0
    assert "one contradicts the model, and its noise is enough on the whole" in compared(0.2, 1.0, 2.0).text()
    assert compared(1.4, 1.4, 1.4).noise_scale == 1.0
