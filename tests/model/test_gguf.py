"""GGUF files become the same model that they were made from, or are refused."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from radixserve.config import EngineConfig
from radixserve.errors import ModelError
from radixserve.model.gguf import convert
from radixserve.model.loader import describe
from radixserve.model.transformers_model import load
from tests.model import gguf_file

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:gguf")


def converted(path: Path, dtype: torch.dtype = torch.float32) -> Path:
    directory = path.parent / "converted"
    directory.mkdir()
    convert(path, directory, dtype)
    return directory


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_weights_and_logits_are_those_of_the_source(tmp_path: Path, family: str):
    source = gguf_file.model(family)
    directory = converted(gguf_file.write(tmp_path / "model.gguf", source))
    again = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    for name, weight in source.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name
    tokens = torch.arange(30)[None] * 7 % 256
    with torch.inference_mode():
        expected, actual = (each(tokens).logits for each in (source, again))
    # The epsilon of the norms and the base of the rotary embedding are in the file as fp32.
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


def test_quantized_weights_are_dequantized_as_gguf_does(tmp_path: Path):
    source = gguf_file.model()
    kind = gguf.GGMLQuantizationType.Q4_1
    path = gguf_file.write(tmp_path / "model.gguf", source, quantization=kind)
    weights = load_file(converted(path, torch.bfloat16) / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    name = "model.layers.1.mlp.up_proj.weight"
    original = source.state_dict()[name]
    expected = gguf.dequantize(gguf.quantize(original.numpy(), kind), kind)
    assert torch.equal(weights[name], torch.from_numpy(expected).bfloat16())
    assert 0 < (weights[name].float() - original).abs().max() < 0.2


def test_a_converted_directory_can_be_served(tmp_path: Path):
    directory = converted(gguf_file.write(tmp_path / "model.gguf", gguf_file.model()))
    described = describe(directory, EngineConfig(device="cpu", dtype="float32"))
    assert described.max_model_len == 256
    assert described.eos_token_ids == {2}
    assert described.config.architectures == ["LlamaForCausalLM"]
    assert load(described)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(tmp_path: Path, share: float):
    path = gguf_file.write(tmp_path / "model.gguf", gguf_file.model())
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ModelError, match=r"model\.gguf"):
        converted(path)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK" * 1000)
    with pytest.raises(ModelError, match="cannot be read as GGUF"):
        converted(path)


def test_an_architecture_that_cannot_be_converted_is_refused(tmp_path: Path):
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "zebra")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelError, match="zebra"):
        converted(path)


def scaled_by_tensor(writer: gguf.GGUFWriter) -> None:
    writer.add_tensor("rope_freqs.weight", torch.ones(8).numpy())


def scaled_by_metadata(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)


@pytest.mark.parametrize("extra", [scaled_by_tensor, scaled_by_metadata])
def test_rotary_embeddings_that_would_be_converted_wrongly_are_refused(
    tmp_path: Path, extra: gguf_file.Extra
):
    path = gguf_file.write(tmp_path / "model.gguf", gguf_file.model(), extra=extra)
    with pytest.raises(ModelError, match="scales its rotary embeddings"):
        converted(path)


def test_a_file_without_some_weights_is_refused(tmp_path: Path):
    source = gguf_file.model()
    state = source.state_dict()
    del state["model.layers.2.mlp.up_proj.weight"]
    source.state_dict = lambda: state  # type: ignore[method-assign]
    path = gguf_file.write(tmp_path / "model.gguf", source)
    with pytest.raises(ModelError, match=r"lacks model\.layers\.2\.mlp\.up_proj\.weight"):
        converted(path)


def test_a_file_with_weights_that_would_be_dropped_is_refused(tmp_path: Path):
    def biased(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("blk.0.attn_q.bias", torch.ones(64).numpy())

    path = gguf_file.write(tmp_path / "model.gguf", gguf_file.model(), extra=biased)
    with pytest.raises(ModelError, match=r"holds blk\.0\.attn_q\.bias"):
        converted(path)
