"""Per-sample gradients of the parameters of a model, from one backward pass over a batch.

The gradient of a weight is a sum over samples, and autograd computes only the sum. Its terms are products of tensors of
the pass: the input of the operation that uses the weight, and the gradient of its output. So parameters are tracked
where they are *used*, whatever module they are in, and every use is one of three:

    product   y = x Wᵀ       ∂L_n/∂W = Σ_s δ_ns ⊗ x_ns, over the positions s of sample n
    lookup    y = W[index]   row t of ∂L_n/∂W is the sum of δ_ns where index_ns = t
    copies    W ⊙ x, x + W … and other broadcasting: every sample uses a copy of W, which has its own gradient

Tensors computed from a parameter alone (`1 + W`, a cast, a table of relative positions) are tracked to the operation
that combines them with the samples, and the gradients of their copies are propagated back to the parameter. Any other
use makes a parameter *unknown*: no gradient is reported for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

Event = tuple[str, str]
"""A parameter's name and how it was used: product, lookup, table (looked up for all samples at once) or copies."""
_IN_PLACE = frozenset({"add_", "__iadd__", "sub_", "__isub__", "mul_", "__imul__", "div_", "__itruediv__"})
_BROADCASTING = _IN_PLACE | {
    *("add", "__radd__", "sub", "rsub", "__rsub__", "mul", "__rmul__", "div", "true_divide"),
    *("where", "masked_fill", "scaled_dot_product_attention"),
}


class Sink(Protocol):
    """Receives the per-sample gradients of one batch, parameter by parameter."""

    def products(self, name: str, left: Tensor, right: Tensor) -> None:
        """Receive factors of the gradients, Σ_s left_ns ⊗ right_ns for sample n.

        `left` is [B, m, rows], `right` is [B, m, columns].
        """

    def samples(self, name: str, gradients: Tensor) -> None:
        """Receive the gradients of some samples, [b, *shape]."""

    def rows(self, name: str, index: Tensor, gradients: Tensor, products: Tensor | None) -> None:
        """Receive rows of the samples' gradients, [U, columns], each (sample, row) once.

        `index` [U] holds the row numbers. `products` holds the same rows of the gradients that :meth:`products`
        received, which must be added.
        """


class PerSample(TorchFunctionMode):
    """Track a forward pass of B samples, and run the backward pass.

        with PerSample(parameters, rows, sink) as seen:
            loss = per_sample_loss(model, batch).sum()
            seen.backward(loss)

    The rows of a tensor that belong to a sample are inferred from its shape: the first dimension counts samples, or
    equal groups of consecutive rows for each. The caller must ensure that this holds. A layer that gradient
    checkpointing recomputes in the backward pass is not tracked there, and refused by PyTorch.

    Args:
        parameters: the parameters to track, by name; each parameter once.
        rows: B, at least 2, so that a first dimension of 1 always means a tensor shared by all samples.
        sink: receives the gradients, during and at the end of :meth:`backward`.
        plan: the :attr:`events` of an earlier pass, which resolve ambiguous shapes.

    Attributes:
        events: every use of a parameter, in the order of the forward pass.
        unknown: parameters whose gradients the sink does not receive completely; read it before :meth:`backward`.
        undivided: whether the pass used rows that are not whole samples.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], rows: int, sink: Sink, plan: Sequence[Event] | None = None
    ) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.unknown: set[str] = set()
        self.undivided = False
        self._rows, self._sink, self._plan = rows, sink, plan
        self._parameters = dict(parameters)
        # By identity; references to the tensors are kept, so that no id is reused.
        self._shared: dict[int, tuple[Tensor, str]] = {id(p): (p, name) for name, p in parameters.items()}
        self._weights = {id(p): name for name, p in parameters.items()}
        self._gathered = {name: _Gathered() for name in parameters}
        # Autograd visits operations without a gradient of their own only because they depend on this leaf.
        device = next(iter(parameters.values())).device if parameters else None
        self._leaf = torch.zeros((), device=device, requires_grad=True)

    # -- forward -----------------------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = list(_tensors((*args, *kwargs.values())))
        if not torch.is_grad_enabled() or not any(id(tensor) in self._shared for tensor in tensors):
            return func(*args, **kwargs)
        reading = _READINGS.get(func)
        result = reading(self, *args, **kwargs) if reading is not None else NotImplemented
        return result if result is not NotImplemented else self._other(func, args, kwargs, tensors)

    def _call(self, func: Callable[..., Any], *args: Any) -> Tensor:
        """Call a function whose arguments may be tracked."""
        result: Tensor = self.__torch_function__(func, (), args)
        return result

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool) -> Tensor:
        """Compute x Wᵀ + b, or x W + b if the weight is stored `transposed`; the weight is tracked."""
        name = self._weights[id(weight)]
        width = x.shape[-1]
        if x.numel() // width % self._rows:
            self.undivided = True
        fused = bias is not None and (id(bias) in self._weights or id(bias) not in self._shared)
        own = self._weights.get(id(bias)) if fused else None
        gathered = self._gathered[name]
        gathered.expected += 1
        self.events += [(name, "product"), *([(own, "copies")] if own is not None else [])]

        def receive(entering: Tensor, leaving: Tensor) -> None:
            x, y = (t.detach().reshape(self._rows, -1, t.shape[-1]) for t in (entering, leaving))
            if own is not None:
                self._gathered[own].direct.append(y.sum(1, dtype=torch.promote_types(y.dtype, torch.float32)))
            if name in self.unknown:
                return
            gathered.products.append((x, y) if transposed else (y, x))
            if len(gathered.products) == gathered.expected:
                self._products_known(name)

        constant = bias.detach() if fused and bias is not None else None
        y: Tensor = _Product.apply(x, self._leaf, weight.detach(), constant, transposed, receive)
        return y if fused or bias is None else self._call(torch.add, y, bias)

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if id(input) in self._shared:
            return NotImplemented
        if id(weight) in self._weights and weight.dim() == 2:
            return self._product(input, weight, bias, transposed=False)
        if id(weight) in self._shared or bias is None:
            return NotImplemented
        return self._call(torch.add, F.linear(input, weight), bias)

    def _addmm(self, input: Tensor, mat1: Tensor, mat2: Tensor, **scales: Any) -> Tensor:
        if scales or id(mat2) not in self._weights or id(mat1) in self._shared:
            return NotImplemented
        return self._product(mat1, mat2, input, transposed=True)

    def _matmul(self, input: Tensor, other: Tensor) -> Tensor:
        if id(other) not in self._weights or other.dim() != 2 or id(input) in self._shared:
            return NotImplemented
        return self._product(input, other, None, transposed=True)

    def _embedding(
        self,
        input: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Tensor:
        name = self._weights.get(id(weight))
        if name is None or max_norm is not None or scale_grad_by_freq:
            return NotImplemented
        how = "lookup" if input.shape[:1] == (self._rows,) else "table"
        if self._plan is not None and len(self.events) < len(self._plan):
            how = "table" if self._plan[len(self.events)] == (name, "table") else how
        self.events.append((name, how))
        if how != "lookup":
            table = F.embedding(input, weight, padding_idx)
            self._shared[id(table)] = (table, name)
            return table
        gathered, index = self._gathered[name], input.reshape(self._rows, -1)
        place = len(gathered.indices)
        gathered.indices.append(index)

        def receive(_: Tensor, leaving: Tensor) -> None:
            delta = leaving.detach().reshape(*index.shape, -1).float()
            if padding_idx is not None:
                delta = delta.masked_fill((index == padding_idx % len(weight))[:, :, None], 0)
            gathered.looked_up[place] = delta

        looked_up: Tensor = _Lookup.apply(input, self._leaf, weight.detach(), receive)
        return looked_up

    def _layer_norm(
        self,
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        if id(input) in self._shared:
            return NotImplemented
        return self._affine(F.layer_norm(input, normalized_shape, eps=eps), weight, bias)

    def _rms_norm(
        self,
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        eps: float | None = None,
    ) -> Tensor:
        if id(input) in self._shared:
            return NotImplemented
        return self._affine(F.rms_norm(input, list(normalized_shape), eps=eps), weight, None)

    def _affine(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        x = x if weight is None else self._call(torch.mul, x, weight)
        return x if bias is None else self._call(torch.add, x, bias)

    def _other(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[Tensor]
    ) -> Any:
        """Handle operations that transform a shared tensor, broadcast it, or use it in another way."""
        shared = {id(tensor): tensor for tensor in tensors if id(tensor) in self._shared}
        alone = len(shared) == 1 == len({id(tensor) for tensor in tensors})
        called = getattr(func, "__name__", "")
        if len(shared) == 1 and not alone and called in _BROADCASTING:
            (one,) = shared.values()
            # A tensor that is written to cannot be copied per sample, and masked_fill takes a single number only.
            refused = called in _IN_PLACE if args[0] is one else called == "masked_fill"
            copies = None if refused else self._copies(one, [tensor for tensor in tensors if tensor is not one])
            if copies is not None:
                swap = {id(one): copies}
                return func(*(swap.get(id(a), a) for a in args), **{k: swap.get(id(a), a) for k, a in kwargs.items()})
        result = func(*args, **kwargs)
        differentiable = [tensor for tensor in _tensors((result,)) if tensor.requires_grad]
        if alone and differentiable and result is differentiable[0]:
            (one,) = shared.values()
            self._shared[id(result)] = (result, self._shared[id(one)][1])
        elif differentiable:
            self.unknown.update(self._shared[known][1] for known in shared)
        return result

    def _copies(self, shared: Tensor, others: Sequence[Tensor]) -> Tensor | None:
        """Return a copy of a shared tensor per sample that broadcasts with the other tensors, or None if impossible."""
        dims = max(shared.dim(), *(other.dim() for other in others))
        first = max((other.shape[0] for other in others if 0 < other.dim() == dims), default=0)
        if not first:  # nothing here has samples: a copy for each would meet them along another axis later
            return None
        first = self._rows if first == 1 else first
        if first % self._rows or (shared.dim() == dims and shared.shape[:1] != (1,)):
            return None
        shape = shared.shape if shared.dim() == dims else (1,) * (dims - shared.dim()) + shared.shape
        name = self._shared[id(shared)][1]
        leaf = shared.detach().reshape(shape).expand(self._rows, *shape[1:]).requires_grad_()
        self.events.append((name, "copies"))
        self._gathered[name].copies.append((shared, leaf))
        return leaf if first == self._rows else leaf.repeat_interleave(first // self._rows, 0)

    # -- backward ----------------------------------------------------------------------------------------------------

    def conclude(self) -> None:
        """Mark parameters as unknown that are used in products and as copies; call it after the forward pass."""
        for name in self._gathered:
            hows = {how for each, how in self.events if each == name} - {"table"}
            if "copies" in hows and len(hows) > 1:
                self.unknown.add(name)

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of the summed losses of the samples; no ``.grad`` is touched."""
        self.conclude()
        if not loss.requires_grad:
            return
        copied = [(gathered, *each) for gathered in self._gathered.values() for each in gathered.copies]
        leaves = [self._leaf, *(leaf for _, _, leaf in copied)]
        _, *gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        with torch._C.DisableTorchFunction():
            for (gathered, shared, _), gradient in zip(copied, gradients, strict=True):
                if gradient is not None:
                    gathered.meeting.append((shared, gradient))
            for name, gathered in self._gathered.items():
                if name not in self.unknown:
                    if gathered.products:  # the loss does not depend on some use
                        self._products_known(name)
                    self._looked_up_known(name)
                    self._copies_known(name, gathered)

    def _products_known(self, name: str) -> None:
        gathered = self._gathered[name]
        left, right = (
            torch.cat(parts, 1) if len(parts) > 1 else parts[0] for parts in zip(*gathered.products, strict=True)
        )
        gathered.products.clear()
        self._sink.products(name, left, right)
        if gathered.indices:
            # Rows that were also looked up have a second term, which is added later.
            index = torch.cat(gathered.indices, 1)
            selected = left.gather(2, index[:, None].expand(-1, left.shape[1], -1))
            gathered.of_products = torch.bmm(selected.mT.float(), right.float())

    def _looked_up_known(self, name: str) -> None:
        gathered = self._gathered[name]
        places = sorted(gathered.looked_up)
        if not places:
            return
        index = torch.cat([gathered.indices[place] for place in places], 1)
        delta = torch.cat([gathered.looked_up[place] for place in places], 1).flatten(0, 1)
        samples = torch.arange(self._rows, device=index.device)[:, None]
        height = len(self._parameters[name])
        keys, where = (index + samples * height).flatten().unique(return_inverse=True)
        gradients = delta.new_zeros(len(keys), delta.shape[1]).index_add_(0, where, delta)
        products = None
        if gathered.of_products is not None:
            parts = gathered.of_products.split([each.shape[1] for each in gathered.indices], 1)
            products = torch.empty_like(gradients)
            products[where] = torch.cat([parts[place] for place in places], 1).flatten(0, 1)
        self._sink.rows(name, keys % height, gradients, products)

    def _copies_known(self, name: str, gathered: _Gathered) -> None:
        parameter = self._parameters[name]
        of_itself = [
            gradient.reshape(self._rows, *parameter.shape) for t, gradient in gathered.meeting if t is parameter
        ]
        of_itself = [*of_itself, *gathered.direct]
        copies = [(shared, gradient) for shared, gradient in gathered.meeting if shared is not parameter]
        direct = torch.stack([part.float() for part in of_itself]).sum(0) if of_itself else None
        if not copies:
            if direct is not None:
                self._sink.samples(name, direct)
            return
        for sample in range(self._rows):
            outputs = [shared for shared, _ in copies]
            weights = [gradient[sample].reshape(shared.shape) for shared, gradient in copies]
            (back,) = torch.autograd.grad(outputs, [parameter], weights, retain_graph=True)
            own = back.float() if direct is None else back.float() + direct[sample]
            self._sink.samples(name, own[None])


@dataclass
class _Gathered:
    """The terms of the gradient of one parameter that a pass has collected."""

    expected: int = 0
    products: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    indices: list[Tensor] = field(default_factory=list)
    looked_up: dict[int, Tensor] = field(default_factory=dict)
    of_products: Tensor | None = None
    copies: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    meeting: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    direct: list[Tensor] = field(default_factory=list)


class _Product(torch.autograd.Function):
    """x Wᵀ + b or x W + b; records x and the gradient of the result, and computes no gradient of W or b."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, leaf: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool, receive: Any
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.transposed, ctx.receive = transposed, receive
        return F.linear(x, weight.T if transposed else weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None, None, None]:
        x, weight = ctx.saved_tensors
        (leaving,) = gradients
        entering = None
        if ctx.needs_input_grad[0]:
            entering = leaving @ (weight.T if ctx.transposed else weight)
        ctx.receive(x, leaving)
        return entering, None, None, None, None, None


class _Lookup(torch.autograd.Function):
    """W[index]; records the gradient of the result, and computes none of W."""

    @staticmethod
    def forward(ctx: Any, index: Tensor, leaf: Tensor, weight: Tensor, receive: Any) -> Tensor:
        ctx.receive = receive
        return F.embedding(index, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None, None]:
        ctx.receive(gradients[0], gradients[0])
        return None, None, None, None


_READINGS: dict[Any, Callable[..., Any]] = {
    F.linear: PerSample._linear,
    F.embedding: PerSample._embedding,
    F.layer_norm: PerSample._layer_norm,
    F.rms_norm: PerSample._rms_norm,
    torch.addmm: PerSample._addmm,
    torch.matmul: PerSample._matmul,
    Tensor.matmul: PerSample._matmul,
    Tensor.__matmul__: PerSample._matmul,
}


def _tensors(values: Sequence[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
