"""The public names of the package."""

from __future__ import annotations

import subprocess
import sys

import pytest

import everlearn


def test_names_are_the_lists_and_the_methods() -> None:
    from everlearn.methods import REGISTRY

    methods = [cls.__name__ for cls in REGISTRY.values() if cls.__module__.startswith("everlearn.")]
    assert everlearn.__all__ == sorted([*everlearn.PUBLIC, *methods, "__version__"])
    assert dir(everlearn) == everlearn.__all__
    assert len(everlearn.PUBLIC) == 21, "what is not a method is a short list"


@pytest.mark.parametrize("name", sorted(everlearn.__all__))
def test_every_name_can_be_imported(name: str) -> None:
    assert getattr(everlearn, name) is not None


def test_methods_go_by_their_class_names() -> None:
    from everlearn.methods import REGISTRY

    assert everlearn.EWC is REGISTRY["ewc"]
    assert everlearn.DomainEnsemble is REGISTRY["ensemble"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    for name in ("Dsa", "nothing"):
        with pytest.raises(AttributeError, match=name):
            getattr(everlearn, name)


def test_import_is_light() -> None:
    code = (
        "import sys, everlearn; dir(everlearn); hasattr(everlearn, 'Dsa'); "
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
