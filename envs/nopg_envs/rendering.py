"""Pictures of the environments, drawn with pygame: as arrays for films and tests, or in a window at real pace."""

import os
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from gymnasium.error import DependencyNotInstalled

Colour = tuple[int, int, int]
Point = tuple[float, float]

BACKGROUND: Colour = (250, 250, 248)
INK: Colour = (45, 50, 60)
FAINT: Colour = (205, 208, 213)
RAIL: Colour = (130, 136, 145)
STOP: Colour = (70, 74, 84)
CART: Colour = (38, 84, 150)
POLE: Colour = (205, 145, 70)
BOB: Colour = (185, 60, 45)
WEDGE: Colour = (225, 240, 222)
ZERO: Colour = (170, 176, 185)
INPUT: Colour = (46, 140, 87)
AT_LIMIT: Colour = (214, 48, 49)
PATH: Colour = (120, 150, 195)

# Everything is drawn this much larger and scaled down, which is what makes edges smooth.
_OVERSAMPLING = 2


def _import_pygame() -> Any:
    # Its greeting on standard output is no business of a library that imports it.
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import pygame
    except ImportError as error:
        raise DependencyNotInstalled('Rendering needs pygame: run `pip install "gymnasium[classic-control]"`') from error
    return pygame


class Canvas:
    """
    A sheet to draw on in pixels of the finished picture, x to the right and y down.

    :param size: width and height, pixels
    :param render_mode: ``"rgb_array"`` returns pictures, ``"human"`` shows them in a window
    :param fps: pictures a second that the window keeps to
    :param title: of the window
    """

    def __init__(self, size: tuple[int, int], render_mode: str, fps: float, title: str):
        if render_mode not in ("rgb_array", "human"):
            raise ValueError(f"render_mode must be 'rgb_array' or 'human', got {render_mode!r}")
        if not fps > 0:
            raise ValueError(f"fps must be positive, got {fps}")
        self.size, self.render_mode, self.fps, self.title = size, render_mode, fps, title
        self._pygame = _import_pygame()
        self._sheet = self._pygame.Surface((size[0] * _OVERSAMPLING, size[1] * _OVERSAMPLING))
        self._clock: Any = None

    def __reduce__(self) -> tuple[type["Canvas"], tuple[tuple[int, int], str, float, str]]:
        # pygame's sheets cannot be copied or pickled, and need not be: every picture begins with a blank one.
        return Canvas, (self.size, self.render_mode, self.fps, self.title)

    def clear(self) -> None:
        """A blank sheet."""
        # Another environment may have shut pygame down since the last picture; starting what runs already costs nothing.
        self._pygame.font.init()
        self._sheet.fill(BACKGROUND)

    def polygon(self, colour: Colour, points: Sequence[Point]) -> None:
        self._pygame.draw.polygon(self._sheet, colour, [(x * _OVERSAMPLING, y * _OVERSAMPLING) for x, y in points])

    def rectangle(self, colour: Colour, left: float, top: float, width: float, height: float, radius: float = 0.0) -> None:
        edges = [round(edge * _OVERSAMPLING) for edge in (left, top, left + width, top + height)]
        rectangle = self._pygame.Rect(edges[0], edges[1], edges[2] - edges[0], edges[3] - edges[1])
        self._pygame.draw.rect(self._sheet, colour, rectangle, border_radius=round(radius * _OVERSAMPLING))

    def circle(self, colour: Colour, centre: Point, radius: float) -> None:
        scaled = (centre[0] * _OVERSAMPLING, centre[1] * _OVERSAMPLING)
        self._pygame.draw.circle(self._sheet, colour, scaled, radius * _OVERSAMPLING)

    def line(self, colour: Colour, start: Point, end: Point, width: float) -> None:
        """A straight line with round ends."""
        along = np.subtract(end, start)
        length = float(np.hypot(*along))
        if length > 0:
            # pygame's own thick lines get thinner the more they lean.
            across = np.array([-along[1], along[0]]) / length * width / 2
            corners = (start + across, end + across, end - across, start - across)
            self.polygon(colour, [(float(x), float(y)) for x, y in corners])
        for point in (start, end):
            self.circle(colour, point, width / 2)

    def text(
        self, text: str, at: Point, size: int = 20, colour: Colour = INK, align: Literal["left", "center", "right"] = "left"
    ) -> None:
        """
        :param at: left, middle or right of the text, depending on ``align``, at half its height
        """
        # Loading the font takes less than 0.1 ms, and a font kept from before pygame was shut down would be invalid.
        written = self._pygame.font.Font(None, size * _OVERSAMPLING).render(text, True, colour)
        box = written.get_rect(
            **{f"mid{align}" if align != "center" else align: (at[0] * _OVERSAMPLING, at[1] * _OVERSAMPLING)}
        )
        self._sheet.blit(written, box)

    def present(self) -> np.ndarray | None:
        """
        :return: the picture (height, width, 3), or None where it went to the window
        """
        pygame = self._pygame
        picture = pygame.transform.smoothscale(self._sheet, self.size)
        if self.render_mode == "rgb_array":
            return np.ascontiguousarray(pygame.surfarray.pixels3d(picture).swapaxes(0, 1))
        window = pygame.display.get_surface() if pygame.display.get_init() else None
        if window is None or self._clock is None:
            pygame.display.init()
            pygame.display.set_caption(self.title)
            window = pygame.display.set_mode(self.size)
            self._clock = pygame.time.Clock()
        window.blit(picture, (0, 0))
        pygame.event.pump()
        pygame.display.flip()
        self._clock.tick(self.fps)
        return None

    def close(self) -> None:
        """Close the window, if there is one. Pictures can still be drawn afterwards; a window would open again."""
        if self._clock is not None:
            self._pygame.display.quit()
            self._clock = None


class CartPoleRenderer:
    """
    The cart on its rail, seen so that +x is to the right and a pole with positive θ leans to the left.

    :param rail_length_m: travel of the cart from stop to stop
    :param pole_length_m: from pivot to tip
    :param voltage_limit_volt: where the voltage bar ends
    :param theta_limit_rad: angle from upright at which an episode ends; None draws no wedge
    :param render_mode: ``"rgb_array"`` or ``"human"``
    :param fps: pictures a second that the window keeps to
    """

    WIDTH, HEIGHT = 880, 560
    # Of the cart's body, m. The rail is drawn longer by it, so that the body touches a stop where its centre cannot go on.
    _CART_LENGTH_M, _CART_HEIGHT_M = 0.12, 0.055

    def __init__(
        self,
        rail_length_m: float,
        pole_length_m: float,
        voltage_limit_volt: float,
        theta_limit_rad: float | None = None,
        render_mode: str = "rgb_array",
        fps: float = 50,
    ):
        for name, value in (
            ("rail_length_m", rail_length_m),
            ("pole_length_m", pole_length_m),
            ("voltage_limit_volt", voltage_limit_volt),
            ("theta_limit_rad", 1.0 if theta_limit_rad is None else theta_limit_rad),
        ):
            if not (np.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be a positive number, got {value!r}")
        self.rail_length_m, self.pole_length_m = rail_length_m, pole_length_m
        self.voltage_limit_volt, self.theta_limit_rad = voltage_limit_volt, theta_limit_rad
        self.canvas = Canvas((self.WIDTH, self.HEIGHT), render_mode, fps, "Cart-pole")
        # As large as fits: the rail with a level pole past either end across, the pole up and down.
        self.pixels_per_m = min(840.0 / (rail_length_m + 2.0 * max(pole_length_m, self._CART_LENGTH_M)), 200.0 / pole_length_m)
        self._rail_y = 282.0
        self._wheel_radius = float(np.clip(0.013 * self.pixels_per_m, 3.0, 9.0))

    def render(self, x_m: float, theta_rad: float, voltage_volt: float, caption: str = "") -> np.ndarray | None:
        """
        :param x_m: cart position, 0 in the middle of the rail
        :param theta_rad: angle from upright, positive when the bob leans towards −x
        :param voltage_volt: voltage applied
        :param caption: written into the upper left corner
        :return: the picture (560, 880, 3), or None where it went to the window
        """
        x_m, theta_rad, voltage_volt = float(x_m), float(theta_rad), float(voltage_volt)
        for name, value in (("x_m", x_m), ("theta_rad", theta_rad), ("voltage_volt", voltage_volt)):
            if not np.isfinite(value):
                raise ValueError(f"{name} must be a finite number, got {value}")
        self.canvas.clear()
        pivot = (self._across(x_m), self._rail_y - 1.5 * self._wheel_radius - self._CART_HEIGHT_M * self.pixels_per_m / 2)
        if self.theta_limit_rad is not None:
            self._draw_wedge(pivot, min(self.theta_limit_rad, np.pi))
        self._draw_rail()
        self._draw_cart(pivot)
        self._draw_pole(pivot, theta_rad)
        draw_input_bar(self.canvas, voltage_volt, self.voltage_limit_volt, (self.WIDTH / 2, 522.0), "V")
        self._write(x_m, theta_rad, caption)
        return self.canvas.present()

    def close(self) -> None:
        """Close the window, if there is one."""
        self.canvas.close()

    def _across(self, x_m: float) -> float:
        return self.WIDTH / 2 + x_m * self.pixels_per_m

    def _draw_wedge(self, pivot: Point, limit_rad: float) -> None:
        radius = 1.08 * self.pole_length_m * self.pixels_per_m
        angles = np.linspace(-limit_rad, limit_rad, 49)
        rim = [(pivot[0] - radius * float(np.sin(a)), pivot[1] - radius * float(np.cos(a))) for a in angles]
        self.canvas.polygon(WEDGE, [pivot, *rim])

    def _draw_rail(self) -> None:
        canvas, y = self.canvas, self._rail_y
        reach = (self.rail_length_m + self._CART_LENGTH_M) / 2
        left, right = self._across(-reach), self._across(reach)
        canvas.rectangle(RAIL, left, y, right - left, 6.0)
        for edge, side in ((left, -1), (right, 1)):
            canvas.rectangle(STOP, edge if side > 0 else edge - 10.0, y - 34.0, 10.0, 52.0, radius=2.0)
        # Marks every 10 cm, each second one with its number, where the cart's centre can stand.
        for i in range(-int(self.rail_length_m / 0.2), int(self.rail_length_m / 0.2) + 1):
            mark = self._across(0.1 * i)
            canvas.rectangle(RAIL, mark - 1.0, y + 6.0, 2.0, 10.0 if i % 2 == 0 else 6.0)
            if i % 2 == 0:
                canvas.text("0 m" if i == 0 else signed(0.1 * i, 1), (mark, y + 26.0), 18, RAIL, "center")

    def _draw_cart(self, pivot: Point) -> None:
        length, height = self._CART_LENGTH_M * self.pixels_per_m, self._CART_HEIGHT_M * self.pixels_per_m
        self.canvas.rectangle(CART, pivot[0] - length / 2, pivot[1] - height / 2, length, height, radius=5.0)
        for side in (-1, 1):
            wheel = (pivot[0] + 0.3 * side * length, self._rail_y - self._wheel_radius)
            self.canvas.circle(INK, wheel, self._wheel_radius)
            self.canvas.circle(FAINT, wheel, 0.4 * self._wheel_radius)

    def _draw_pole(self, pivot: Point, theta_rad: float) -> None:
        length = self.pole_length_m * self.pixels_per_m
        tip = (pivot[0] - length * float(np.sin(theta_rad)), pivot[1] - length * float(np.cos(theta_rad)))
        self.canvas.line(POLE, pivot, tip, 7.0)
        self.canvas.circle(BOB, tip, 10.0)
        self.canvas.circle(INK, pivot, 5.0)

    def _write(self, x_m: float, theta_rad: float, caption: str) -> None:
        self.canvas.text(caption, (20.0, 24.0), 24)
        # Above all that the pole can reach.
        self.canvas.text(f"x = {signed(x_m, 3)} m", (self.WIDTH - 190.0, 24.0), 24, align="right")
        self.canvas.text(f"θ = {signed(theta_rad, 3)} rad", (self.WIDTH - 20.0, 24.0), 24, align="right")


def draw_input_bar(
    canvas: Canvas, value: float, limit: float, middle: Point, unit: str = "", half_width: float = 200.0
) -> None:
    """
    A bar that grows from its middle to the side that the input pushes to, and turns red at the limit.

    :param canvas: to draw on
    :param value: input applied; past the limit the bar stays full and the number tells
    :param limit: where the bar is full
    :param middle: where zero is, pixels
    :param unit: written after the numbers
    :param half_width: length of a full bar, pixels
    """
    x, y = middle
    share = float(np.clip(value / limit, -1.0, 1.0))
    canvas.rectangle(FAINT, x - half_width, y - 9.0, 2 * half_width, 18.0, radius=3.0)
    colour = AT_LIMIT if abs(share) >= 1.0 else INPUT
    canvas.rectangle(colour, min(x, x + share * half_width), y - 9.0, abs(share) * half_width, 18.0)
    for edge in (-half_width, 0.0, half_width):
        canvas.rectangle(INK, x + edge - 1.0, y - 13.0, 2.0, 26.0)
    for side in (-1.0, 1.0):
        number = f"{signed(side * limit, 0 if float(limit).is_integer() else 1)} {unit}".rstrip()
        canvas.text(number, (x + side * (half_width + 8.0), y), 18, INK, "left" if side > 0 else "right")
    canvas.text(f"{signed(value, 2)} {unit}".rstrip(), (x, y - 24.0), 22, colour if share else INK, "center")


def signed(value: float, digits: int) -> str:
    """A number with its sign and this many digits after the point."""
    # A true minus sign is as wide as the plus sign, so numbers do not jump when the sign changes.
    return f"{value:+.{digits}f}".replace("-", "−")
