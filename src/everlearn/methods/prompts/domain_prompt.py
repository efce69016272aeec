"""One trained vector per domain, read with every text of it (ELLE, arXiv 2203.06311, §3.3).

ELLE inserts the prompt of a domain after the first token. Here it also has the position of the first token, so that a
row may still have the longest input of the model, and all packed documents are equally close to it. It takes part in
the attention of every layer and is removed from the last hidden state, so that later modules see the text only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from everlearn.methods.engine.attachment import Attachment, arguments
from everlearn.methods.prompts.soft_prompt import as_attention_mask, seen_in_rows
from everlearn.model.anatomy import kind_of

NO_PROMPT = -1
"""Domain number of a row that is read without a prompt."""


class DomainPrompts(Attachment):
    """Prompts in front of the layers of the base model.

    Attributes:
        vectors: one for each domain, [D, H].
        rows: domain number of each row of the next pass, [B] on the CPU; further rows (views of other methods), and all
            rows if it is None, belong to the last domain.
    """

    lengthens_rows = True

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.vectors = nn.Parameter(vectors.clone())
        self.rows: Tensor | None = None
        self._at = 0
        self._padding: int | None = None

    def place(self, model: nn.Module) -> None:
        """Register hooks on the base model: encoders get the prompt after the first token, decoders before it."""
        base: Any = model.base_model
        self._at = 1 if kind_of(model) == "encoder" else 0
        tables = (module for name, module in base.named_modules() if name.endswith("position_embeddings"))
        self._padding = getattr(next(tables, None), "padding_idx", None)
        base.register_forward_pre_hook(self._insert, with_kwargs=True)
        base.register_forward_hook(self._remove)

    def _insert(
        self, base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[()], dict[str, Any]]:
        inputs = arguments(base, args, kwargs)
        ids, embedded = inputs.pop("input_ids", None), inputs.get("inputs_embeds")
        if embedded is None:
            embedded = base.get_input_embeddings()(ids)  # type: ignore[operator]
        domains, everywhere = self._domains(len(embedded))
        prompt = self.vectors[domains.clamp(min=0)][:, None].to(embedded.dtype)
        positions = inputs.get("position_ids")
        if positions is None:
            positions = self._positions(embedded, ids)
        if inputs.get("attention_mask") is not None or not (everywhere and self._at):
            inputs["attention_mask"] = self._mask(base, inputs.get("attention_mask"), positions, domains >= 0)
        inputs["inputs_embeds"] = self._between(embedded, prompt)
        inputs["position_ids"] = self._between(positions, positions[:, :1])
        if inputs.get("token_type_ids") is not None:
            inputs["token_type_ids"] = self._between(inputs["token_type_ids"], inputs["token_type_ids"][:, :1])
        return (), inputs

    def _remove(self, base: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        hidden = output.last_hidden_state
        output.last_hidden_state = torch.cat([hidden[:, : self._at], hidden[:, self._at + 1 :]], 1)
        return output

    def _between(self, row: Tensor, new: Tensor) -> Tensor:
        return torch.cat([row[:, : self._at], new, row[:, self._at :]], 1)

    def _domains(self, rows: int) -> tuple[Tensor, bool]:
        """Return the domain number of each row, [B], and whether all have a prompt; :attr:`rows` is used once."""
        first, self.rows = self.rows, None
        domains = torch.full((rows,), len(self.vectors) - 1)
        if first is not None:
            domains[: len(first)] = first
        return domains.to(self.vectors.device), bool((domains >= 0).all())

    def _positions(self, embedded: Tensor, ids: Tensor | None) -> Tensor:
        """Return the positions that the model would compute itself, [B, S]."""
        shape = embedded.shape[:2]
        if self._padding is None or ids is None:
            first = 0 if self._padding is None else self._padding + 1
            return torch.arange(first, first + shape[1], device=embedded.device).expand(shape)
        real = (ids != self._padding).long()
        return real.cumsum(1) * real + self._padding

    def _mask(self, base: nn.Module, mask: Tensor | None, positions: Tensor, has: Tensor) -> Tensor:
        """Return the attention mask with the prompt, which every token of a row with a prompt attends to."""
        if mask is None and self._at:
            mask = torch.ones_like(positions)
        elif mask is None:
            mask = seen_in_rows(positions)
        if mask.dim() == 2:
            return self._between(mask, has[:, None].to(mask.dtype))
        extended = mask.new_ones(len(mask), mask.shape[1], mask.shape[2] + 1, mask.shape[3] + 1)
        text = [i for i in range(extended.shape[3]) if i != self._at]
        at = torch.tensor(text, device=mask.device)
        extended[:, :, at[:, None], at] = mask
        extended[:, :, at, self._at] = has[:, None, None].to(mask.dtype)
        extended[:, :, self._at, : self._at] = extended[:, :, self._at, self._at + 1 :] = bool(self._at)
        return as_attention_mask(base, extended, self.vectors.dtype)
