"""The layers that K-FAC knows, each as one matrix of weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from adaqn.baselines.kfac_factors import LayerForm

Layer = nn.Linear | nn.Embedding


@dataclass(frozen=True)
class Block:
    """One layer, whose parameters are one matrix."""

    name: str
    layer: Layer
    form: LayerForm

    @property
    def weight(self) -> Tensor:
        return self.layer.weight

    @property
    def params(self) -> list[Tensor]:
        """The weight, and the bias if there is one."""
        bias = getattr(self.layer, "bias", None)
        return [self.layer.weight] if bias is None else [self.layer.weight, bias]

    def gradient(self) -> Tensor | None:
        """∇W as a matrix of outputs by inputs; a part without a gradient counts as zero."""
        parts = [(p, p.grad) for p in self.params]
        if all(g is None for _, g in parts):
            return None
        weight, *bias = (torch.zeros_like(p) if g is None else g for p, g in parts)
        return torch.cat([weight.T if self.form.one_hot else weight, *(b.unsqueeze(1) for b in bias)], dim=1)

    def split(self, matrix: Tensor) -> list[Tensor]:
        """A matrix like W, as pieces like the parameters."""
        if self.form.one_hot:
            return [matrix.T]
        return [matrix[:, :-1], matrix[:, -1]] if self.form.bias else [matrix]


def find_blocks(model: nn.Module, max_dimension: int) -> list[Block]:
    """The layers whose own weights they are, not computed from others; raises if one of them cannot be trained."""
    blocks = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding) and module._parameters.get("weight") is not None:
            check_layer(name, module)
            blocks.append(Block(name or "model", module, layer_form(module, max_dimension)))
    return blocks


def layer_form(layer: Layer, max_dimension: int) -> LayerForm:
    """The shape of a layer's factors; the wider ones are kept as diagonals."""
    if isinstance(layer, nn.Embedding):
        symbols, width = layer.weight.shape
        return LayerForm(
            symbols,
            width,
            one_hot=True,
            padding=layer.padding_idx,
            diagonal_inputs=True,
            diagonal_outputs=width > max_dimension,
        )
    outputs, inputs = layer.weight.shape
    inputs += layer.bias is not None
    return LayerForm(
        inputs,
        outputs,
        bias=layer.bias is not None,
        diagonal_inputs=inputs > max_dimension,
        diagonal_outputs=outputs > max_dimension,
    )


def check_layer(name: str, layer: Layer) -> None:
    """Raise if K-FAC cannot train this layer."""
    for p in layer.parameters(recurse=False):
        if isinstance(p, UninitializedParameter):
            raise ValueError(f"layer {name!r} has no shape yet: run one forward pass before making the optimizer")
        if p.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"layer {name!r} has parameters of {p.dtype}, and K-FAC needs float32 or float64: convert the model"
            )
    if isinstance(layer, nn.Embedding) and (layer.sparse or layer.scale_grad_by_freq):
        raise ValueError(
            f"embedding {name!r} has sparse={layer.sparse} and scale_grad_by_freq={layer.scale_grad_by_freq}, and "
            "K-FAC needs plain dense gradients: build it with both False"
        )
    bias = getattr(layer, "bias", None)
    if bias is not None and bias.requires_grad != layer.weight.requires_grad:
        raise ValueError(
            f"layer {name!r} has a weight and a bias of which one is frozen, and K-FAC takes them as one matrix: "
            "freeze both, or build the layer with bias=False"
        )
