"""Many short simulations at once are the same simulations, one by one."""

import numpy as np
import pytest

from helpers.simulated_recordings import chirp, record
from nopg_envs.cartpole.parameters import CartPoleParameters
from nopg_envs.identification.prediction import predict, windows_of
from nopg_envs.identification.recordings import read_recording

RIG = CartPoleParameters()


@pytest.mark.slow
def test_several_parameter_sets_at_once_are_each_of_them_alone(tmp_path):
    exact_file = record(tmp_path / "exact.npz", RIG, chirp(3.0), quantised=False)
    windows, _ = windows_of(read_recording(exact_file), 0.1, every_s=0.1, rail_length_m=RIG.rail_length_m)
    sets = [RIG, RIG.replace(input_gain=2.0), RIG.replace(input_delay_s=0.013), RIG.replace(pole_coulomb=0.3)]
    together, alone = predict(sets, windows), [predict([one], windows) for one in sets]
    for number, one in enumerate(alone):
        for quantity in range(2):
            np.testing.assert_allclose(together[quantity][number], one[quantity][0], atol=1e-12)
