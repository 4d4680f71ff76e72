"""Tests of training."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def smaller_still(small_sizes):
    """
    A course judges its candidates several times, and looks that far ahead each time.

    How well it judges is asked in ``prediction/test_judge.py``.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sb3_nopg.prediction.judge._MOST_STEPS", 20)
        yield
