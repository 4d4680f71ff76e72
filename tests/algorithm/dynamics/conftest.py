"""Tests of the model of the system."""

import pytest


@pytest.fixture(autouse=True)
def chosen_once():
    """Not here: what a model is made of is chosen in every test."""
