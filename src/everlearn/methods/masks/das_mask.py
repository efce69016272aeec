"""The mask of DAS: convert factors per unit to factors per parameter (arXiv 2302.03241, eq. 4)."""

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
    """Return factors by parameter name, which broadcast to the parameters, from factors per unit.

    Args:
        model: the model with the parameters.
        layout: its anatomy.
        free: site name → 1 − importance, [units].
        axis: the axis along which heads are masked in queries, keys and values: `out` for a head's own rows; `in` as in
            the released code, see :func:`along_inputs`.

    Raises:
        MethodError: there is no such site or the number of units is wrong; or, with `in`, the heads do not have as many
            features as the input.
    """
    if axis == "in":
        layout = replace(layout, sites=tuple(along_inputs(site, model) for site in layout.sites))
    return layout.parameter_factors(free)


def along_inputs(site: Site, model: nn.Module) -> Site:
    """Return a site of heads as the released code masks it: query, key and value weights along their *input* features.

    Input feature i is unrelated to the head at position i of the outputs. The same factors are applied to the bias of
    the attention's output projection, whose entries do not belong to heads either. Other sites are returned unchanged.

    Raises:
        MethodError: a projection has another number of inputs than all heads have features.
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
