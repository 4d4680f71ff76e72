"""Which episode a transition belongs to, against a loop over the rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sb3_nopg import TransitionDataset
from sb3_nopg.data.episode_labels import episode_labels, labels_from_ends, numbered_as_they_begin, units_of_each


def data(n: int, **fields: object) -> TransitionDataset:
    rng = np.random.default_rng(0)
    arrays = {"terminals": np.zeros(n, dtype=bool), **fields}
    return TransitionDataset(
        rng.normal(size=(n, 1)), rng.normal(size=(n, 1)), rng.normal(size=n), rng.normal(size=(n, 1)), **arrays
    )


@pytest.mark.slow
@given(st.lists(st.booleans(), min_size=1))
def test_an_episode_goes_on_to_the_row_that_ends_it(ends):
    expected, number = [], 0
    for end in ends:
        expected.append(number)
        number += end
    assert labels_from_ends(np.array(ends)).tolist() == expected


@pytest.mark.slow
@given(st.lists(st.integers(-3, 3), min_size=1))
def test_episodes_are_numbered_as_they_begin(labels):
    known: dict[int, int] = {}
    expected = [known.setdefault(label, len(known)) for label in labels]
    assert numbered_as_they_begin(np.array(labels)).tolist() == expected


@pytest.mark.parametrize(
    ("fields", "labels", "units", "starts"),
    [
        # Ids count before all else, and their rows need not lie together.
        ({"episode_ids": [7, 3, 7, 3], "timeouts": [1, 0, 0, 1]}, [7, 3, 7, 3], [1, 0, 1, 0], [0, 1]),
        ({"timeouts": [0, 1, 0, 0]}, [0, 0, 1, 1], [0, 0, 1, 1], [0, 2]),
        ({"timeouts": [0, 0, 0, 0], "terminals": [1, 0, 0, 1]}, [0, 1, 1, 1], [0, 1, 1, 1], [0, 1]),
        ({"timeouts": [0, 0, 0, 0]}, None, [0, 1, 2, 3], None),
        # Whoever records no time limits may have mixed up rows.
        ({"terminals": [1, 0, 0, 1]}, None, [0, 1, 2, 3], None),
    ],
)
def test_what_data_tell_of_their_episodes(fields, labels, units, starts):
    dataset = data(4, **fields)
    found = episode_labels(dataset)
    assert (None if found is None else found.tolist()) == labels
    assert units_of_each(dataset).tolist() == units
    assert (None if dataset.episode_starts is None else dataset.episode_starts.tolist()) == starts
