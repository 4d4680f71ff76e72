"""Colours of a picture."""

import numpy as np


def colour_counts(pixels: np.ndarray, n_steps: int) -> np.ndarray:
    """
    How many pixels each colour has that occurs.

    :param pixels: numbers between zero and one, (..., 3)
    :param n_steps: that red, green and blue are each rounded to
    """
    steps = (pixels.reshape(-1, 3) * n_steps).round().astype(np.int64)
    # One number for each colour: rows of an array are sorted a hundred times slower.
    _, counts = np.unique(steps @ np.array([(n_steps + 1) ** 2, n_steps + 1, 1]), return_counts=True)
    return counts


def n_colours(pixels: np.ndarray) -> int:
    """
    How many colours occur, told apart by a hundredth of red, green or blue.

    :param pixels: numbers between zero and one, (..., 3)
    """
    return len(colour_counts(pixels, 100))
