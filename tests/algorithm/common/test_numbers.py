"""Checks of single numbers: what passes, and what the refusal says."""

import math

import numpy as np
import pytest

from sb3_nopg import InputError
from sb3_nopg.common.numbers import check_count, check_number


@pytest.mark.parametrize("value", [1, 7, np.int32(3), np.uint8(1)])
def test_counts_pass(value):
    check_count("n", value)
    check_count("n", value, 1, 7)


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", None, math.nan, np.float64(2.0), [1]])
def test_what_is_no_count_is_refused(value):
    with pytest.raises(InputError, match=r"n: .* is not a positive whole number\. Give 1 or more\.") as error:
        check_count("n", value)
    assert error.value.field == "n"


def test_the_range_of_a_count_is_told():
    check_count("n", 0, 0)
    check_count("n", None, optional=True)
    with pytest.raises(InputError, match=r"n: 1 is not a whole number from 2 on\. Give 2 or more\."):
        check_count("n", 1, 2)
    with pytest.raises(InputError, match=r"n: 4 is not a whole number from 0 to 3\. Give a number from 0 to 3\."):
        check_count("n", 4, 0, 3)
    with pytest.raises(InputError, match=r"n: 0 is not a positive whole number\. Count again\."):
        check_count("n", 0, optional=True, fix="Count again")


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), 1e-300])
def test_numbers_pass(value):
    check_number("x", value, 0.0, 1.0)


@pytest.mark.parametrize("value", [True, "0.5", None, [0.5], np.array([0.5])])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(InputError, match=r"x: .* is not a number\. Give a number in \(0, 1\)\."):
        check_number("x", value, 0.0, 1.0)


@pytest.mark.parametrize("value", [0, 1, 0.0, 1.0, -3.0, math.inf, math.nan, np.float32(1.0)])
def test_numbers_out_of_range_are_refused(value):
    with pytest.raises(InputError, match=r"x: .* is out of range\. Give a number in \(0, 1\)\."):
        check_number("x", value, 0.0, 1.0)


def test_ends_pass_where_they_belong_to_the_range():
    check_number("x", 0, 0.0, 1.0, low_included=True)
    check_number("x", math.inf, 0.0, math.inf, high_included=True)
    check_number("x", None, 0.0, 1.0, optional=True)
    with pytest.raises(InputError, match=r"x: 1\.0 is out of range\. Give a number in \[0, 1\)\."):
        check_number("x", 1.0, 0.0, 1.0, low_included=True)
    with pytest.raises(InputError, match=r"x: 2 is out of range\. Ask somebody\."):
        check_number("x", 2, 0.0, 1.0, high_included=True, fix="Ask somebody")
