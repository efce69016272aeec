"""The public names of the package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import everlearn


def test_names_are_sorted_and_complete() -> None:
    names = everlearn.__all__
    assert sorted(set(names)) == sorted(names)
    assert set(names) == {*everlearn._MODULE_OF, "__version__"}
    constants = [name for name in names if name.isupper()]
    classes = [name for name in names if name[0].isupper() and not name.isupper()]
    assert names == [*sorted(constants), *sorted(classes), *sorted(set(names) - {*constants, *classes})]
    assert dir(everlearn) == sorted(names)


@pytest.mark.parametrize("name", sorted(everlearn.__all__))
def test_every_name_can_be_imported(name: str) -> None:
    assert getattr(everlearn, name) is not None


def test_every_method_of_the_docs_is_there() -> None:
    """By its class, under the name that its file gives it."""
    from everlearn.methods import REGISTRY

    page = (Path(__file__).parents[1] / "docs" / "methods.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", page.split("\n| name |", 1)[1].split("\n\n", 1)[0], flags=re.MULTILINE)
    assert len(listed) > 10
    assert [name for name in listed if name not in REGISTRY] == []
    for name in listed:
        cls = REGISTRY[name]
        assert getattr(everlearn, cls.__name__) is cls, name
        assert cls.__name__ in everlearn.__all__
    assert set(listed) == set(REGISTRY), "docs/methods.md lists every method"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Dsa"):
        everlearn.Dsa  # noqa: B018


def test_import_is_light() -> None:
    code = "import sys, everlearn; assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
