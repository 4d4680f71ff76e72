"""Demonstrations that come with the package."""

import numpy as np
import pytest

from nopg_envs import demonstrations
from nopg_envs.demonstrations import scripted_operator
from sb3_nopg import TransitionDataset


def test_the_shipped_set_is_what_the_scripted_operator_records():
    path = demonstrations.demonstration_file("mountain_car_scripted")
    again = scripted_operator.mountain_car_scripted()
    with np.load(path) as shipped:
        assert set(shipped.files) == set(again)
        assert "not a person" in str(shipped["recorded_by"])
        for name in set(again) - {"recorded_by"}:
            np.testing.assert_allclose(shipped[name], again[name], atol=1e-5, err_msg=name)


def test_the_shipped_set_reaches_the_goal_but_not_in_the_best_way():
    data = TransitionDataset.load(demonstrations.demonstration_file("mountain_car_scripted"))
    assert int(data.terminals.sum()) == len(data.episode_starts) == 10
    assert set(np.unique(data.actions)) == {-1.0, 0.0, 1.0}
    returns = [data.rewards[data.episode_ids == number].sum() for number in range(10)]
    assert 80.0 < min(returns) < max(returns) < 95.0
    # A third of the time it does not push the way the car rolls: late, distracted, or wrong.
    pushes_along = data.actions[:, 0] == np.where(data.observations[:, 1] >= 0, 1.0, -1.0)
    assert 0.5 < pushes_along.mean() < 0.8


def test_an_unknown_set_is_named_with_the_known_ones():
    with pytest.raises(ValueError, match="mountain_car_scripted"):
        demonstrations.demonstration_file("nix")
