"""FP8 keys and values of the decoder in torch: where they can be had, and their static scales.

A layer has one scale for its keys and one for its values. The checkpoint says them, or they are
measured before anything is served: they never depend on a request.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence

import torch
import xxhash

from radixserve.config import EngineConfig
from radixserve.errors import ConfigError, ModelError
from radixserve.folders import keep, recalled
from radixserve.kernels.kv_append import LARGEST
from radixserve.model import calibration, family
from radixserve.model.kv_storage import KvGeometry, Scales, code_of
from radixserve.model.loader import Description
from radixserve.model.parallel import Parallel
from radixserve.model.torch_decoder import TorchDecoder

log = logging.getLogger(__name__)

HEADROOM = 2.0
"""What may come is this many times as large as what was measured, before it is cut off. It costs
the smallest of the 15 powers of two that e4m3 has at full precision."""
LEAST, MOST = 2.0**-20, 2.0**12
"""Of a scale: below it e4m3 ends at 0.0004, above it everything up to 8 is nothing or 8."""
VERSION = 1
"""Of how scales are measured: those of another version are measured again."""
FOLDER = "kv_scales"
REMEDY = (
    "Leave kv_cache_dtype at auto, or take all such scales out of the checkpoint: then they are "
    "measured."
)
NO_REMEDY = "Leave kv_cache_dtype at auto."


def check_gpu(described: Description, config: EngineConfig) -> None:
    """Refuse KV in 8 bits that nothing on a GPU can read, before anything is loaded.

    Raises:
        ConfigError: it is int8; or FlashInfer or radixserve's own decoder cannot run this.
    """
    if code_of(config) == "none":
        return
    if code_of(config) != "fp8_e4m3":
        raise ConfigError(
            f"kv_cache_dtype {config.kv_cache_dtype} is for CPUs: on a GPU take fp8, or leave it "
            "at auto."
        )
    unfit = family.unfit(described.config)
    if unfit is not None:
        needs = f"radixserve's own decoder, which does not run this model ({unfit}): "
    elif config.attention_backend != "auto":
        needs = f"attention_backend auto, not {config.attention_backend}: set that, or "
    elif described.dtype == torch.float32:
        needs = "FlashInfer, which has no kernels for float32: set dtype bfloat16, or "
    else:
        try:
            importlib.import_module("flashinfer")
            return
        except Exception as error:  # it has failed in more ways than ImportError
            needs = f"FlashInfer, which cannot be imported ({error}): install radixserve[gpu], or "
    raise ConfigError(
        f"kv_cache_dtype {config.kv_cache_dtype} on a GPU needs {needs}leave it at auto."
    )


def written(described: Description, tensors: family.Tensors) -> Scales | None:
    """The scales that the checkpoint has among its ``tensors``; None if it has none.

    Raises:
        ModelError: they are incomplete, more than one a layer, or no scales of e4m3.
    """
    where = f"{described.path}: the scale of FP8"
    found: dict[tuple[int, str], set[float]] = {}
    for name, stored in tensors.items():
        named = family.ATTENTION_SCALE.fullmatch(name)
        of = (named["what"] or named["projection"]) if named else "q"
        if named is None or of == "q":  # queries stay as they are
            continue
        scale = torch.as_tensor(stored[...])
        if scale.numel() != 1:
            raise ModelError(
                f"{where}, {name}, is not one number but {list(scale.shape)}: FlashInfer takes one "
                f"a layer. {REMEDY}"
            )
        for which in of:
            found.setdefault((int(named["layer"]), which), set()).add(float(scale.float()))
    if not found:
        return None
    scheme = family.kv_scheme(described.config)
    kind, bits = scheme.get("type", "float"), scheme.get("num_bits", 8)
    if (kind, bits) != ("float", 8):
        raise ModelError(f"{where} is for KV of {bits} bits of type {kind}. {REMEDY}")
    pairs = []
    for layer in range(described.config.num_hidden_layers):
        pair = [found.get((layer, which), set()) for which in "kv"]
        for what, those in zip(("keys", "values"), pair, strict=True):
            if len(those) != 1:
                how = "differs between its names" if those else "is not there, but of others it is"
                raise ModelError(f"{where}, of the {what} of layer {layer}, {how}. {REMEDY}")
        pairs.append([those.pop() for those in pair])
    return _said(_checked(pairs, where, REMEDY), "the checkpoint")


def measured(
    described: Description, decoder: TorchDecoder, geometry: KvGeometry, parallel: Parallel
) -> Scales:
    """Scales for what a fixed set of prompts leaves behind, measured now or when these weights were
    first served; the same on all ranks. ``geometry`` is that of plain KV.

    Raises:
        ModelError: keys or values are too large, or no numbers.
    """
    prompts = calibration.prompts(described)
    said = (VERSION, HEADROOM, calibration.identity(described), geometry, prompts, parallel.size)
    name = xxhash.xxh3_128_hexdigest(repr(said).encode())
    known = recalled(FOLDER, name, list[tuple[float, float]])
    if known is not None and not (
        len(known) == geometry.layers and all(_usable(each) for pair in known for each in pair)
    ):
        known = None
    if not parallel.smallest(int(known is not None)):
        known = None  # all ranks measure together, or none does
    if known is not None:
        return _said(tuple(known), "an earlier measurement")
    sizes = calibration.largest(decoder, geometry, prompts, progress=parallel.rank == 0)
    # What is no number is the largest on no rank: infinity is, on all.
    sizes = parallel.largest(sizes.nan_to_num(nan=torch.inf, posinf=torch.inf))
    scales = torch.where(sizes == 0, 1.0, (sizes * (HEADROOM / LARGEST)).clamp(min=LEAST))
    where = f"{described.path}: the scale that FP8 would need"
    pairs = _checked(scales.tolist(), where, NO_REMEDY)
    if parallel.rank == 0:
        keep(FOLDER, name, pairs)
    return _said(pairs, "a measurement")


def _checked(pairs: Sequence[Sequence[float]], where: str, remedy: str) -> Scales:
    for layer, pair in enumerate(pairs):
        for what, scale in zip(("keys", "values"), pair, strict=True):
            if not _usable(scale):
                raise ModelError(
                    f"{where}, of the {what} of layer {layer}, is {scale:g}, which is not between "
                    f"{LEAST:g} and {MOST:g}. {remedy}"
                )
    return tuple((key, value) for key, value in pairs)


def _usable(scale: float) -> bool:
    return LEAST <= scale <= MOST  # NaN is not


def _said(scales: Scales, source: str) -> Scales:
    keys, values = zip(*scales, strict=True)
    log.info(
        "FP8 keys and values: scales of %s, keys %.3g to %.3g, values %.3g to %.3g",
        *(source, min(keys), max(keys), min(values), max(values)),
    )
    return scales
