"""Plain values between processes: what comes out is what went in, and nothing else comes out."""

from __future__ import annotations

import datetime as dt
import os
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.tools.kernel.values import Buffers, NotPlain, Store, decode_value, encode_value, write_values


def there_and_back(value: object) -> Any:
    """`value` through a file in memory."""
    buffers = Buffers()
    fd = os.memfd_create("values")
    try:
        write_values(fd, encode_value(value, buffers), buffers)
        store = Store(fd)
        return decode_value(store.header, store)
    finally:
        os.close(fd)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()


@given(
    st.recursive(
        SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner)
    )
)
def test_values_of_python_come_back_as_they_were(value: object) -> None:
    """Numbers, texts and containers keep value and type."""
    back = there_and_back(value)

    assert back == value
    assert type(back) is type(value)


ZONED = pd.to_datetime(["2020-01-01", "2021-02-02"]).tz_localize("Europe/Berlin")


@pytest.mark.parametrize(
    "column",
    [
        [1.5, np.nan],
        ["x", None],
        pd.to_datetime(["2020-01-01", None]),
        pd.to_timedelta(["1D", "2h"]),
        ZONED,
        pd.Categorical(["u", "v"], ordered=True),
        pd.array([1, None], dtype="Int64"),
        pd.array([True, None], dtype="boolean"),
        pd.array(["a", None], dtype="string"),
        pd.period_range("2020-01", periods=2, freq="M"),
        pd.cut([1, 2], 2),
        pd.Series([[1], {"a": 2}], dtype=object),
    ],
    ids=[
        "floats",
        "texts",
        "dates",
        "spans",
        "zoned",
        "categories",
        "integers",
        "truths",
        "strings",
        "periods",
        "intervals",
        "objects",
    ],
)
def test_columns_of_every_type_come_back(column: Any) -> None:
    """A frame with the column, beside another one and alone, and grouped by it, is equal afterwards."""
    frame = pd.DataFrame({"a": column, "b": [1, 2]})
    frame.index = pd.date_range("2020", periods=2, freq="ME", name="when")

    pd.testing.assert_frame_equal(there_and_back(frame), frame)
    pd.testing.assert_series_equal(there_and_back(frame["a"]), frame["a"])


def test_indexes_and_arrays_come_back() -> None:
    """Levels, labels, scalars and arrays of any order in memory."""
    frame = pd.DataFrame({"a": [1, 1, 2], "b": ["x", "y", "x"], "c": [1.0, 2.0, 3.0]})
    grouped = frame.groupby(["a", "b"]).c.sum()
    wide = frame.pivot(index="a", columns="b", values="c")

    pd.testing.assert_series_equal(there_and_back(grouped), grouped)
    pd.testing.assert_frame_equal(there_and_back(wide), wide)
    for array in (
        np.arange(6).reshape(2, 3).T,
        np.arange(10)[::3],
        np.array(1.5),
        np.zeros((0, 3)),
        np.array(["a", "bc"]),
    ):
        back = there_and_back(array)
        np.testing.assert_array_equal(back, array)
        assert back.dtype == array.dtype
    moments = [
        pd.Timestamp("2020", tz="UTC"),
        pd.Timedelta("1D"),
        np.float32(2),
        dt.date(2020, 1, 1),
        Decimal("1.10"),
        1 + 2j,
        pd.NaT,
    ]
    assert [type(there_and_back(one)) for one in moments] == [type(one) for one in moments]


class Listed(list[int]):
    """A class of the user's, whose methods would run."""


@pytest.mark.parametrize(
    "value",
    [Listed(), object(), len, np.array([object()]), pd.DataFrame({"a": [object()]}), [[Listed()]]],
    ids=["subclass", "object", "function", "array", "frame", "inside"],
)
def test_other_types_are_refused_with_their_name(value: object) -> None:
    """Subclasses, functions and objects are no plain data, wherever they lie."""
    with pytest.raises(NotPlain, match=r"it is a|holds objects"):
        there_and_back(value)


def test_what_goes_in_circles_is_refused() -> None:
    """A list that holds itself ends in a reason, not in an endless loop."""
    circle: list[object] = []
    circle.append(circle)
    with pytest.raises(NotPlain, match="nested too deeply"):
        there_and_back(circle)
