"""Picture of a vector-valued state: its way through the plane where it has two entries, bars where it has another number."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from nopg_envs.rendering import BACKGROUND, CART, FAINT, INK, PATH, RAIL, ZERO, Canvas, draw_input_bar


class StateRenderer:
    """
    :param n_states: entries of the state; two are drawn as a plane
    :param state_bound: largest entry that is always in view; the view grows when the state leaves it
    :param action_bound: where an input's bar is full
    :param render_mode: ``"rgb_array"`` or ``"human"``
    :param fps: pictures a second that the window keeps to
    """

    WIDTH, HEIGHT = 720, 480
    # The square that holds the plane or the bars of the state, pixels.
    _LEFT, _TOP, _SIDE = 60.0, 48.0, 384.0
    # More bars than these would be too thin to tell apart.
    _MOST_BARS = 24

    def __init__(
        self, n_states: int, state_bound: float, action_bound: float, render_mode: str = "rgb_array", fps: float = 10
    ):
        self.n_states, self.state_bound, self.action_bound = n_states, state_bound, action_bound
        self.canvas = Canvas((self.WIDTH, self.HEIGHT), render_mode, fps, "State")

    def render(self, path: Sequence[np.ndarray], action: np.ndarray) -> np.ndarray | None:
        """
        :param path: states since the start, the present one last
        :param action: input applied last
        :return: the picture (480, 720, 3), or None where it went to the window
        """
        points = np.array(path, dtype=np.float64)
        if not (np.isfinite(points).all() and np.isfinite(action).all()):
            raise ValueError("path and action must hold finite numbers only")
        shown = points if self.n_states == 2 else points[-1:]
        extent = _round_up(max(self.state_bound, float(np.abs(shown).max())))
        self.canvas.clear()
        if self.n_states == 2:
            self._draw_plane(points, extent)
        else:
            self._draw_bars(points[-1], extent)
        self._draw_inputs(np.asarray(action, dtype=np.float64))
        return self.canvas.present()

    def close(self) -> None:
        """Close the window, if there is one."""
        self.canvas.close()

    def _place(self, point: np.ndarray, extent: float) -> tuple[float, float]:
        scale = self._SIDE / 2 / extent
        return self._LEFT + self._SIDE / 2 + scale * float(point[0]), self._TOP + self._SIDE / 2 - scale * float(point[1])

    def _draw_plane(self, points: np.ndarray, extent: float) -> None:
        canvas, left, top, side = self.canvas, self._LEFT, self._TOP, self._SIDE
        self._draw_frame()
        for share in (-1.0, -0.5, 0.0, 0.5, 1.0):
            x, y = self._place(np.array([share * extent, share * extent]), extent)
            colour, width = (ZERO, 2.0) if share == 0 else (FAINT, 1.0)
            canvas.rectangle(colour, x - width / 2, top, width, side)
            canvas.rectangle(colour, left, y - width / 2, side, width)
            number = f"{share * extent:g}".replace("-", "−")
            canvas.text(number, (x, top + side + 14.0), 18, RAIL, "center")
            canvas.text(number, (left - 8.0, y), 18, RAIL, "right")
        canvas.text("x1", (left + side + 10.0, top + side / 2), 20, RAIL)
        canvas.text("x2", (left + side / 2, top - 10.0), 20, RAIL, "center")
        places = [self._place(point, extent) for point in points]
        for start, end in pairwise(places):
            canvas.line(PATH, start, end, 3.0)
        for place in places:
            canvas.circle(PATH, place, 4.0)
        # A ring where it started, a full disc where it is.
        canvas.circle(INK, places[0], 7.0)
        canvas.circle(BACKGROUND, places[0], 4.5)
        canvas.circle(CART, places[-1], 9.0)

    def _draw_bars(self, state: np.ndarray, extent: float) -> None:
        canvas, middle = self.canvas, self._TOP + self._SIDE / 2
        self._draw_frame()
        for share in (-1.0, 0.0, 1.0):
            y = middle - share * self._SIDE / 2
            canvas.text(f"{share * extent:g}".replace("-", "−"), (self._LEFT - 8.0, y), 18, RAIL, "right")
        shown = state[: self._MOST_BARS]
        pitch = self._SIDE / len(shown)
        for i, value in enumerate(shown):
            x, height = self._LEFT + (i + 0.5) * pitch, float(value) / extent * self._SIDE / 2
            width = min(0.6 * pitch, 60.0)
            canvas.rectangle(CART, x - width / 2, min(middle, middle - height), width, abs(height))
            if len(shown) <= 12:
                canvas.text(f"x{i + 1}", (x, self._TOP + self._SIDE + 14.0), 18, RAIL, "center")
        if len(shown) < len(state):
            canvas.text(f"first {len(shown)} of {len(state)} entries", (self._LEFT, self._TOP + self._SIDE + 14.0), 18, RAIL)
        canvas.rectangle(ZERO, self._LEFT, middle - 1.0, self._SIDE, 2.0)

    def _draw_frame(self) -> None:
        self.canvas.rectangle(FAINT, self._LEFT - 1.0, self._TOP - 1.0, self._SIDE + 2.0, self._SIDE + 2.0)
        self.canvas.rectangle((255, 255, 255), self._LEFT, self._TOP, self._SIDE, self._SIDE)

    def _draw_inputs(self, action: np.ndarray) -> None:
        middle = 590.0
        for i, value in enumerate(action[:6]):
            y = self._TOP + 40.0 + 62.0 * i
            self.canvas.text(f"u{i + 1}", (middle - 70.0, y - 24.0), 20, RAIL)
            draw_input_bar(self.canvas, float(value), self.action_bound, (middle, y), half_width=70.0)
        if len(action) > 6:
            self.canvas.text(f"first 6 of {len(action)} inputs", (middle, self._TOP + self._SIDE), 18, RAIL, "center")


def _round_up(value: float) -> float:
    """The next number of the form 1, 2 or 5 times a power of ten."""
    power = 10.0 ** np.floor(np.log10(value))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9)))
