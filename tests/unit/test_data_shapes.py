"""Every shape of data on the page of supported data is tried."""

from __future__ import annotations

import pytest

import data_shapes_page


@pytest.mark.parametrize("shape", data_shapes_page.SHAPES)
def test_the_page_says_what_is_read(shape: str) -> None:
    assert data_shapes_page.row(shape) == data_shapes_page.committed()[shape]


def test_the_page_has_no_other_shapes() -> None:
    assert set(data_shapes_page.committed()) == set(data_shapes_page.SHAPES)
