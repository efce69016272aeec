"""The mask of DAS: from what units may change to what their parameters may change (arXiv 2302.03241, eq. 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.model.anatomy import Anatomy, Owned, Site

Axis = Literal["out", "in"]


def mask_factors(
    model: nn.Module, layout: Anatomy, free: Mapping[str, Tensor], axis: Axis = "out"
) -> dict[str, Tensor]:
    """Factors per unit to factors per parameter.

    Args:
        model: has the parameters.
        layout: of the model.
        free: site name to 1 − importance, [units].
        axis: along what the heads are masked in queries, keys and values: `out` is a head's own rows; `in` is the
            released code, see :func:`along_inputs`.

    Returns:
        Parameter name to a tensor that broadcasts to it.

    Raises:
        MethodError: no such site or number of units; or `in`, where the heads have not as many features as go in.
    """
    if axis == "in":
        layout = replace(layout, sites=tuple(along_inputs(site, model) for site in layout.sites))
    return layout.parameter_factors(free)


def along_inputs(site: Site, model: nn.Module) -> Site:
    """A site of heads as the released code masks it: weights of query, key and value along their *input* features.

    Input feature i has nothing to do with the head that stands at i among the outputs. The same factors go onto the
    bias of the attention's output projection, whose entries are no heads either. Other sites stay as they are.

    Raises:
        MethodError: a projection takes another number of features than all heads together have.
    """
    if site.kind != "head":
        return site
    owned: list[Owned] = []
    for own in site.owned:
        if own.dims == 2 and not own.parameter.startswith(f"{site.module}."):
            features = model.get_parameter(own.parameter).shape[1 - own.dim]
            if features != site.units * site.width:
                raise MethodError(
                    f"Method 'das', option 'qkv_mask_axis': '{own.parameter}' takes {features} features and the heads "
                    f"have {site.units * site.width}, so it cannot be masked along its inputs. Set it to `out`."
                )
            own = Owned(own.parameter, 1 - own.dim, own.dims, each=site.width)
        owned.append(own)
    if getattr(model.get_submodule(site.module), "bias", None) is not None:
        owned.append(Owned(f"{site.module}.bias", 0, 1, each=site.width))
    return replace(site, owned=tuple(owned))
