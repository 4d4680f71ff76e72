"""The pictures show what they claim to show: looked at pixel by pixel, as a person would look at them."""

import builtins
import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest

from nopg_envs import rendering
from nopg_envs.cartpole import QuanserCartPoleBalanceEnv
from nopg_envs.lqr import LQREnv
from nopg_envs.rendering import CartPoleRenderer
from nopg_envs.state_picture import StateRenderer


@pytest.fixture(autouse=True)
def no_screen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


@pytest.fixture
def renderer():
    made = CartPoleRenderer(rail_length_m=0.814, pole_length_m=0.3365, voltage_limit_volt=5.0, theta_limit_rad=0.2)
    yield made
    made.close()


def where(picture: np.ndarray, colour: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Columns and rows of all pixels of exactly this colour."""
    rows, columns = np.nonzero((picture == np.array(colour, dtype=np.uint8)).all(axis=2))
    return columns, rows


def middle(picture: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    columns, rows = where(picture, colour)
    assert len(columns) > 20, f"hardly anything is drawn in {colour}"
    return np.array([columns.mean(), rows.mean()])


def bob_from_pivot(renderer: CartPoleRenderer, theta_rad: float) -> np.ndarray:
    """Where the bob is seen from the pivot, in metres to the right and up, with the cart in the middle."""
    picture = renderer.render(0.0, theta_rad, 0.0)
    upright = middle(renderer.render(0.0, 0.0, 0.0), rendering.BOB)
    pivot = upright + np.array([0.0, renderer.pole_length_m * renderer.pixels_per_m])
    return (middle(picture, rendering.BOB) - pivot) * [1.0, -1.0] / renderer.pixels_per_m


def test_picture_is_an_image(renderer: CartPoleRenderer):
    picture = renderer.render(0.1, 0.1, 1.0, "hello")
    assert picture.dtype == np.uint8
    assert picture.shape == (renderer.HEIGHT, renderer.WIDTH, 3)
    assert picture.flags.writeable


def test_same_state_same_picture_and_pictures_are_independent(renderer: CartPoleRenderer):
    first = renderer.render(0.1, 0.1, 1.0)
    kept = first.copy()
    renderer.render(-0.3, 2.0, -5.0)
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(renderer.render(0.1, 0.1, 1.0), kept)


@pytest.mark.parametrize("x_m", [-0.407, -0.3, -0.05, 0.0, 0.2, 0.407])
def test_cart_stands_where_it_is(renderer: CartPoleRenderer, x_m: float):
    columns, _ = where(renderer.render(x_m, np.pi, 0.0), rendering.CART)
    expected = renderer.WIDTH / 2 + x_m * renderer.pixels_per_m
    assert (columns.min() + columns.max() + 1) / 2 == pytest.approx(expected, abs=1.0)


def test_cart_touches_the_stop_at_the_end_of_the_rail_and_not_before(renderer: CartPoleRenderer):
    def gap(x_m: float) -> int:
        picture = renderer.render(x_m, np.pi, 0.0)
        return int(where(picture, rendering.STOP)[0].max() - where(picture, rendering.CART)[0].max())

    stop_width = 10
    assert gap(0.407) == pytest.approx(stop_width, abs=2)
    assert gap(0.357) == pytest.approx(stop_width + 0.05 * renderer.pixels_per_m, abs=2)


@pytest.mark.parametrize("theta_rad", [0.0, 0.15, -0.15, 1.0, -1.0, np.pi / 2, -np.pi / 2, 2.5, np.pi, -np.pi, 7.0])
def test_pole_points_where_it_points_and_positive_angles_lean_left(renderer: CartPoleRenderer, theta_rad: float):
    expected = renderer.pole_length_m * np.array([-np.sin(theta_rad), np.cos(theta_rad)])
    np.testing.assert_allclose(bob_from_pivot(renderer, theta_rad), expected, atol=0.005)


def test_pole_is_drawn_from_pivot_to_bob(renderer: CartPoleRenderer):
    picture = renderer.render(0.2, np.pi / 2, 0.0)
    columns, rows = where(picture, rendering.POLE)
    assert np.ptp(rows) < 10
    assert np.ptp(columns) > 0.8 * renderer.pole_length_m * renderer.pixels_per_m
    # To the left of the cart, which stands at 0.2 m.
    assert columns.mean() < renderer.WIDTH / 2 + 0.2 * renderer.pixels_per_m


@pytest.mark.parametrize("pole_length_m", [0.3365, 0.6413, 0.05])
@pytest.mark.parametrize("theta_rad", [0.0, np.pi / 2, -np.pi / 2, np.pi])
@pytest.mark.parametrize("x_m", [-0.407, 0.407])
def test_bob_never_leaves_the_picture(pole_length_m: float, theta_rad: float, x_m: float):
    renderer = CartPoleRenderer(0.814, pole_length_m, 5.0)
    columns, _ = where(renderer.render(x_m, theta_rad, 0.0), rendering.BOB)
    elsewhere, _ = where(renderer.render(0.0, theta_rad, 0.0), rendering.BOB)
    # The pivot is drawn over the bob of a very short pole, in both pictures alike.
    assert len(columns) == pytest.approx(len(elsewhere), abs=25)
    assert columns.min() > 0
    assert columns.max() < renderer.WIDTH - 1


@pytest.mark.slow
def test_voltage_bar_grows_to_the_side_that_the_cart_is_pushed_to(renderer: CartPoleRenderer):
    def extent(voltage: float, colour: tuple[int, int, int] = rendering.INPUT) -> tuple[float, float]:
        columns, rows = where(renderer.render(0.0, 0.0, voltage), colour)
        # The number above the bar has its colour too.
        columns = columns[rows > rows.max() - 10]
        return columns.min() - renderer.WIDTH / 2, columns.max() + 1 - renderer.WIDTH / 2

    for voltage in (1.0, 2.0, 4.0):
        assert extent(voltage)[1] == pytest.approx(200.0 * voltage / 5.0, abs=1.5)
        assert extent(voltage)[0] >= 0
        assert extent(-voltage)[0] == pytest.approx(-200.0 * voltage / 5.0, abs=1.5)
        assert extent(-voltage)[1] <= 0
    # Full, and red, at the limit; no longer than that past it.
    for voltage in (5.0, 8.0):
        assert extent(voltage, rendering.AT_LIMIT)[1] == pytest.approx(200.0, abs=1.5)
        assert len(where(renderer.render(0.0, 0.0, voltage), rendering.INPUT)[0]) == 0


def test_no_voltage_no_bar(renderer: CartPoleRenderer):
    picture = renderer.render(0.0, 0.0, 0.0)
    for colour in (rendering.INPUT, rendering.AT_LIMIT):
        assert len(where(picture, colour)[0]) == 0


@pytest.mark.slow
def test_wedge_opens_with_the_angle_limit_and_moves_with_the_cart(renderer: CartPoleRenderer):
    def widest(limit: float | None, x_m: float = 0.0) -> np.ndarray:
        made = CartPoleRenderer(0.814, 0.3365, 5.0, theta_limit_rad=limit)
        return np.unique(where(made.render(x_m, np.pi, 0.0), rendering.WEDGE)[0])

    assert len(widest(None)) == 0
    length = 1.08 * 0.3365 * renderer.pixels_per_m
    assert np.ptp(widest(0.2)) == pytest.approx(2 * length * np.sin(0.2), abs=4)
    assert np.ptp(widest(0.4)) == pytest.approx(2 * length * np.sin(0.4), abs=4)
    assert widest(0.2, 0.3).mean() - widest(0.2).mean() == pytest.approx(0.3 * renderer.pixels_per_m, abs=1.5)


def test_caption_and_numbers_are_written(renderer: CartPoleRenderer):
    def ink(caption: str, x_m: float = 0.0) -> tuple[int, int]:
        dark = (renderer.render(x_m, np.pi, 0.0, caption)[:45] < 120).all(axis=2)
        return int(dark[:, : renderer.WIDTH // 2].sum()), int(dark[:, renderer.WIDTH // 2 :].sum())

    assert ink("")[0] == 0
    assert ink("one")[0] < ink("one two three")[0]
    assert ink("")[1] > 100


def test_a_window_shows_the_picture_and_returns_none():
    import pygame

    renderer = CartPoleRenderer(0.814, 0.3365, 5.0, render_mode="human", fps=1000)
    assert renderer.render(-0.2, 0.1, 2.0) is None
    shown = pygame.surfarray.array3d(pygame.display.get_surface()).swapaxes(0, 1)
    np.testing.assert_array_equal(shown, CartPoleRenderer(0.814, 0.3365, 5.0).render(-0.2, 0.1, 2.0))
    renderer.close()
    assert not pygame.display.get_init()
    renderer.close()


@pytest.mark.slow
def test_window_keeps_the_pace():
    import time

    renderer = CartPoleRenderer(0.814, 0.3365, 5.0, render_mode="human", fps=20)
    renderer.render(0.0, 0.0, 0.0)
    start = time.perf_counter()
    for _ in range(5):
        renderer.render(0.0, 0.0, 0.0)
    assert time.perf_counter() - start > 0.2
    renderer.close()


def test_pictures_survive_that_another_environment_shuts_pygame_down(renderer: CartPoleRenderer):
    import pygame

    before = renderer.render(0.0, 0.1, 1.0)
    pygame.quit()
    np.testing.assert_array_equal(renderer.render(0.0, 0.1, 1.0), before)


def test_missing_pygame_is_named(monkeypatch: pytest.MonkeyPatch):
    import_module = builtins.__import__

    def without_pygame(name: str, *args, **kwargs):
        if name == "pygame":
            raise ImportError("no pygame here")
        return import_module(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_pygame)
    with pytest.raises(gym.error.DependencyNotInstalled, match="pygame"):
        CartPoleRenderer(0.814, 0.3365, 5.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rail_length_m": 0.0}, "rail_length_m"),
        ({"pole_length_m": -1.0}, "pole_length_m"),
        ({"voltage_limit_volt": float("nan")}, "voltage_limit_volt"),
        ({"theta_limit_rad": 0.0}, "theta_limit_rad"),
        ({"render_mode": "ansi"}, "render_mode"),
        ({"fps": 0}, "fps"),
    ],
)
def test_bad_parameters_are_refused(arguments: dict, message: str):
    with pytest.raises(ValueError, match=message):
        CartPoleRenderer(**{"rail_length_m": 0.814, "pole_length_m": 0.3365, "voltage_limit_volt": 5.0, **arguments})


@pytest.mark.parametrize(("state", "message"), [((np.nan, 0, 0), "x_m"), ((0, np.inf, 0), "theta"), ((0, 0, np.nan), "volt")])
def test_states_that_cannot_be_drawn_are_refused(renderer: CartPoleRenderer, state: tuple, message: str):
    with pytest.raises(ValueError, match=message):
        renderer.render(*state)


# --- The plane and the bars of the regulator -----------------------------------------------------------------------------


def plane_place(state: tuple[float, float], extent: float) -> np.ndarray:
    return np.array([60 + 192 + 192 * state[0] / extent, 48 + 192 - 192 * state[1] / extent])


@pytest.mark.parametrize("state", [(1.0, 1.0), (-1.5, 0.5), (0.0, -1.0)])
def test_disc_is_where_the_state_is(state: tuple[float, float]):
    env = LQREnv(render_mode="rgb_array")
    env.reset(options={"state": state})
    np.testing.assert_allclose(middle(env.render(), rendering.CART) + 0.5, plane_place(state, 2.0), atol=1.5)
    env.close()


@pytest.mark.slow
def test_path_is_drawn_behind_the_state_and_forgotten_at_reset():
    env = LQREnv(render_mode="rgb_array")
    env.reset()
    first = env.render()
    assert len(where(first, rendering.PATH)[0]) == 0
    lengths = []
    for _ in range(4):
        env.step(np.array([-3.0, -2.0]))
        lengths.append(len(where(env.render(), rendering.PATH)[0]))
    assert np.all(np.diff(lengths) > 0)
    env.reset()
    np.testing.assert_array_equal(env.render(), first)


def test_view_grows_with_the_state():
    env = LQREnv(render_mode="rgb_array")
    env.reset(options={"state": (40.0, 0.0)})
    np.testing.assert_allclose(middle(env.render(), rendering.CART) + 0.5, plane_place((40.0, 0.0), 50.0), atol=1.5)


def test_input_bars_show_the_last_input():
    env = LQREnv(render_mode="rgb_array", action_bound=10.0)
    env.reset()
    env.step(np.array([5.0, -10.0]))
    picture = env.render()
    columns, rows = where(picture[:110], rendering.INPUT)
    assert columns[rows > 85].max() - 590 == pytest.approx(35, abs=2)
    columns, rows = where(picture[110:], rendering.AT_LIMIT)
    assert columns.min() - 590 == pytest.approx(-70, abs=2)


@pytest.mark.slow
@pytest.mark.parametrize("n_states", [1, 3, 5, 40])
def test_states_that_are_no_plane_become_bars(n_states: int):
    renderer = StateRenderer(n_states, state_bound=2.0, action_bound=1.0)
    state = np.zeros(n_states)
    assert len(where(renderer.render([state], np.zeros(2)), rendering.CART)[0]) == 0
    heights = []
    for value in (0.5, 1.0, 2.0):
        state[0] = value
        _, rows = where(renderer.render([state], np.zeros(2)), rendering.CART)
        heights.append(np.ptp(rows))
        assert rows.max() < 48 + 192
    np.testing.assert_allclose(heights, [48, 96, 192], atol=3)
    _, rows = where(renderer.render([-state], np.zeros(2)), rendering.CART)
    assert rows.min() >= 48 + 192


def test_regulator_in_a_window_returns_none():
    env = LQREnv(render_mode="human")
    env.metadata = {**env.metadata, "render_fps": 1000}
    env.reset()
    env.step(np.ones(2))
    assert env.render() is None
    env.close()


def test_regulator_without_a_mode_says_that_it_draws_nothing():
    env = LQREnv()
    env.reset()
    with pytest.warns(UserWarning, match="render_mode"):
        assert env.render() is None


def test_a_state_that_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="finite"):
        StateRenderer(2, 1.0, 1.0).render([np.array([np.nan, 0.0])], np.zeros(1))


@pytest.mark.slow
@pytest.mark.parametrize("env_class", [LQREnv, QuanserCartPoleBalanceEnv])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_copies_of_an_environment_that_has_drawn_draw_the_same_and_go_their_own_way(env_class: type, duplicate):
    env = env_class(render_mode="rgb_array")
    env.reset(seed=0)
    env.render()
    twin = duplicate(env)
    picture = env.render()
    np.testing.assert_array_equal(twin.render(), picture)
    for _ in range(5):
        twin.step(twin.action_space.high)
    assert (twin.render() != picture).any()
    np.testing.assert_array_equal(env.render(), picture)
    env.close()
    assert twin.render().shape == picture.shape
    twin.close()


def test_copies_share_the_window_and_open_their_own_once_it_is_closed():
    env = QuanserCartPoleBalanceEnv(render_mode="human", control_hz=500)
    env.reset()
    twin = copy.deepcopy(env)
    twin.step(np.ones(1))
    env.close()
    twin.step(np.ones(1))
    twin.close()
