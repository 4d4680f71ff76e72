"""Settings as plain text: what has no such form stays a pickle, and what is damaged is no value."""

import base64
import os

import numpy as np
import pytest

from helpers.model_files import QUICK, MyPolicy, small, with_settings
from sb3_nopg import NOPG, InputError
from sb3_nopg.policies.plain_values import NotPlainError, from_plain, to_plain


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model.zip"
    small(**QUICK).save(path)
    return path


DAMAGED = {
    "an unknown class": {"class": "os.system"},
    "an unknown record": {"record": "Popen", "fields": {"args": "true"}},
    "a record of something else": {"record": "Candidate", "fields": {"colour": 1}},
    "an array of objects": {"array": base64.b64encode(bytes(8)).decode(), "dtype": "|O", "shape": [1]},
    "a shape that is none": {"array": base64.b64encode(bytes(8)).decode(), "dtype": "<f8", "shape": [10**12]},
    "no base64": {"array": "§", "dtype": "<f8", "shape": [1]},
    "a form that is none": {"lambda": "x"},
    "nothing": {},
    "a bare list": [1, 2],
    "bounds that are none": {"box": [1, 2, 3]},
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_plain_value_that_is_none_is_refused(tmp_path, saved, case):
    with pytest.raises(NotPlainError):
        from_plain(DAMAGED[case])
    path = with_settings(saved, tmp_path / "damaged.zip", action_space={":plain:": DAMAGED[case]})
    with pytest.raises(InputError, match="its action_space cannot be read"):
        NOPG.load(path, device="cpu")


def test_a_plain_value_that_is_too_deep_is_refused():
    value: object = 0
    for _ in range(100):
        value = [value]
    with pytest.raises(NotPlainError, match="too deep"):
        from_plain(to_plain(value))


@pytest.mark.parametrize("value", [os.system, lambda x: x, object(), np.array([None]), np.array(["a"]), MyPolicy, 1j, {1, 2}])
def test_what_has_no_plain_form_stays_a_pickle(value):
    with pytest.raises(NotPlainError):
        to_plain(value)
