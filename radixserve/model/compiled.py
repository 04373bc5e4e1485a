"""torch.compile for models that transformers runs: all but attention, which stays as it is.

Imported only where it is asked for: torch's compiler takes as long to import as torch does.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from functools import cache
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch

from radixserve.errors import ConfigError
from radixserve.model.transformers_attention import LayerAttention

COMPILER = "inductor"
"""See ``torch.compiler.list_backends``."""


class OpaqueAttention:
    """A ``LayerAttention`` that a compiled model calls as one operation nobody looks into.

    An operation of torch takes tensors and numbers: ``_number`` stands for this object, which leads
    to what computes attention in this step.
    """

    def __init__(self) -> None:
        self._number = next(_numbers)
        self.now: LayerAttention | None = None
        _known[self._number] = self

    def around(self, paged: LayerAttention) -> LayerAttention:
        """This, leading to ``paged``."""
        self.now = paged
        return self

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scale: float,
        soft_cap: float | None,
        extras: dict[str, Any],
    ) -> torch.Tensor:
        """See ``LayerAttention``; ``extras`` were looked at before the model was compiled."""
        output: torch.Tensor = _attend(
            query, key, value, self._number, module.layer_idx, scale, soft_cap
        )
        return output


_numbers = count()
_known: WeakValueDictionary[int, OpaqueAttention] = WeakValueDictionary()


@cache
def _module(layer: int) -> torch.nn.Module:
    """What ``LayerAttention`` reads of a layer."""
    module = torch.nn.Module()
    module.layer_idx = layer  # type: ignore[assignment]
    return module


# The pages that it writes are none of its arguments, so that torch knows of no write. It may not
# leave out or swap calls all the same: what each layer reads is made of what the one before gave.
@torch.library.custom_op(
    "radixserve::attend",
    mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor value, int number, int layer, float scale, "
    "float? soft_cap) -> Tensor",
)
def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    number: int,
    layer: int,
    scale: float,
    soft_cap: float | None,
) -> torch.Tensor:
    paged = _known[number].now
    assert paged is not None, "a step has begun"
    output = paged(_module(layer), query, key, value, scale=scale, soft_cap=soft_cap, extras={})
    # What was compiled around it reads memory of this form.
    return output.contiguous()


@_attend.register_fake
def _(query: torch.Tensor, *others: Any) -> torch.Tensor:
    return torch.empty_like(query, memory_format=torch.contiguous_format)


def compile_body(model: Any) -> None:
    """Let what is between the token ids and the last norm of ``model`` be compiled at first use.

    That takes any number of tokens; one token alone is compiled apart. The logits, which are fewer
    than the tokens and not always equally many, stay as they are.

    Args:
        model: a ``PreTrainedModel`` on its device.

    Raises:
        ConfigError: there is nothing to compile with.
    """
    if model.device.type == "cuda":
        tool, there = "Triton", importlib.util.find_spec("triton") is not None
        remedy = "pip install triton"
    else:
        tool = os.environ.get("CXX", "g++")
        there, remedy = shutil.which(tool) is not None, "apt-get install g++, or set CXX"
    if not there:
        raise ConfigError(
            f"torch_compile needs {tool}, which is not there: {remedy}; or leave torch_compile out."
        )
    model.base_model.compile(dynamic=True, backend=COMPILER)
