"""Models are loaded whole, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BloomConfig,
    DeepseekV3Config,
    DiffLlamaConfig,
    DogeConfig,
    Gemma3Config,
    GptOssConfig,
    GraniteSWAConfig,
    LlamaConfig,
    LlamaForSequenceClassification,
    MambaConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3NextConfig,
    StableLmConfig,
    T5Config,
)
from transformers.models.llama4 import Llama4TextConfig

from radixserve.attention.reference import ReferenceAttention
from radixserve.config import EngineConfig
from radixserve.errors import ConfigError, ModelError
from radixserve.model import transformers_model
from radixserve.model.compatibility import check_config
from radixserve.model.decoder import Decoder
from radixserve.model.kv_storage import KvStorage
from radixserve.model.loader import describe, pick_dtype
from radixserve.model.survey import own_logits, self_check, survey
from tests.model import tiny

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}


def engine(**settings: Any) -> EngineConfig:
    return EngineConfig(**{"dtype": "float32", "device": "cpu", **settings})


def load(path: Path, config: EngineConfig) -> Decoder:
    return transformers_model.load(describe(path, config))


def dummy(directory: Path, config: PreTrainedConfig, **settings: Any) -> Decoder:
    config.save_pretrained(directory)
    return load(directory, engine(load_format="dummy", **settings))


def examine(directory: Path, config: PreTrainedConfig) -> None:
    """All that is checked before a model is served, with dummy weights."""
    decoder = dummy(directory, config, max_model_len=64)
    geometry = survey(decoder, 64)
    backend = ReferenceAttention(KvStorage(geometry, 8, 4, CPU).kv)
    self_check(decoder, backend, own_logits(decoder, 64), 64)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tiny.write(tmp_path / "model")


def rewrite(file: Path, **changes: Any) -> None:
    """Change top-level keys of a JSON file; None takes a key away."""
    content = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: each for key, each in content.items() if each is not None}))


REFUSED = {
    "an encoder-decoder": (T5Config(), "encoder-decoder"),
    "a mixture with sinks": (GptOssConfig(), "attention sinks"),
    "a model that sees": (Gemma3Config(), "multimodal"),
    "a state-space model": (MambaConfig(), "linear_attention"),
    "a hybrid": (Qwen3NextConfig(), "linear_attention"),
    "an encoder": (BertConfig(**SMALL), "not causal"),
    "latent attention": (
        DeepseekV3Config(
            **{**SMALL, "num_key_value_heads": 4},
            q_lora_rank=16,
            kv_lora_rank=16,
            qk_nope_head_dim=8,
            qk_rope_head_dim=8,
            v_head_dim=8,
            n_routed_experts=8,
            first_k_dense_replace=2,
        ),
        "multi-head latent attention",
    ),
    "a bias by distance": (
        BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4),
        "Bloom",
    ),
    "sinks that only its attention tells of": (GraniteSWAConfig(**SMALL), "attention sinks"),
    "a mask of its own": (DogeConfig(**SMALL), "'attention_mask' in its attention"),
    "two attentions a layer": (DiffLlamaConfig(**SMALL), "DiffLlama"),
    "attention that is told nothing": (StableLmConfig(**SMALL), "StableLm"),
}


@pytest.mark.parametrize(("config", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_needs_more_than_causal_attention_is_refused_by_name(
    tmp_path: Path, config: PreTrainedConfig, reason: str
):
    with pytest.raises(ModelError, match=reason) as caught:
        examine(tmp_path, config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_families_that_are_served_pass_every_check(tmp_path: Path, family: str):
    examine(tmp_path, tiny.FAMILIES[family]())


def test_attention_that_forgets_is_found_out(tmp_path: Path):
    class Forgetful(ReferenceAttention):
        def append(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
            super().append(layer, key, value)
            self.kv[:, 7] = 0

    decoder = load(tiny.write(tmp_path), engine())
    storage = KvStorage(survey(decoder, 64), 8, 4, CPU)
    with pytest.raises(ModelError, match="other logits with paged attention"):
        self_check(decoder, Forgetful(storage.kv), own_logits(decoder, 64), 64)


WINDOWED = MistralConfig(**SMALL, sliding_window=32)


def test_a_window_is_refused_only_where_a_text_can_outgrow_it():
    assert check_config(WINDOWED, 32) == 32
    with pytest.raises(ModelError, match="--max-model-len 32"):
        check_config(WINDOWED, 33)
    with pytest.raises(ModelError, match="sliding window of 32 tokens"):
        check_config(WINDOWED, None)
    assert check_config(Qwen2Config(**SMALL, sliding_window=32, use_sliding_window=False), 64) == 64


def scaled(kind: str, **parameters: Any) -> dict[str, Any]:
    original = {"original_max_position_embeddings": 32}
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **original, **parameters}}


FACTORS = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
CHANGING = {
    "dynamic": LlamaConfig(**SMALL, **scaled("dynamic", factor=2.0)),
    "longrope": Phi3Config(
        **SMALL, original_max_position_embeddings=32, **scaled("longrope", **FACTORS)
    ),
    "temperature tuning": Llama4TextConfig(
        **SMALL, attn_temperature_tuning=True, floor_scale=33, attention_chunk_size=64
    ),
}


@pytest.mark.parametrize("config", CHANGING.values(), ids=CHANGING.keys())
def test_positions_that_change_with_the_text_are_refused_beyond_where_they_do(
    config: PreTrainedConfig,
):
    assert check_config(config, 32) == 32
    with pytest.raises(ModelError, match="--max-model-len 32 or less"):
        check_config(config, 33)


def test_a_context_longer_than_the_model_knows_is_refused():
    with pytest.raises(ConfigError, match="more than the 64 tokens"):
        check_config(LlamaConfig(**SMALL), 65)
    assert check_config(LlamaConfig(**SMALL), None) == 64


def test_a_classifier_is_not_taken_for_a_language_model(tmp_path: Path):
    LlamaForSequenceClassification(LlamaConfig(**SMALL)).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="LlamaForSequenceClassification is not a causal"):
        load(tmp_path, engine())


CHANGES = {
    "no model_type": ({"model_type": None}, "no architecture"),
    "no architectures": ({"architectures": None}, "no architecture"),
    "an unknown model_type": ({"model_type": "zebra"}, "'zebra' cannot be read"),
    "more layers than weights": ({"num_hidden_layers": 4}, "lack model.layers.3"),
    "fewer layers than weights": ({"num_hidden_layers": 2}, "hold, beyond what the model has,"),
    "another width": ({"hidden_size": 32}, "weights cannot be loaded"),
}


@pytest.mark.parametrize(("changes", "reason"), CHANGES.values(), ids=CHANGES.keys())
def test_a_config_that_does_not_fit_its_weights_is_refused(
    checkpoint: Path, changes: dict[str, Any], reason: str
):
    rewrite(checkpoint / "config.json", **changes)
    with pytest.raises(ModelError, match=reason):
        load(checkpoint, engine())


def test_damaged_files_are_refused(checkpoint: Path):
    weights = checkpoint / "model.safetensors"
    whole = weights.read_bytes()
    for part in (whole[: len(whole) // 2], whole[:4], b"\xff" * 64):
        weights.write_bytes(part)
        with pytest.raises(ModelError, match="cannot be loaded"):
            load(checkpoint, engine())
    weights.unlink()
    with pytest.raises(ModelError, match="holds no weights"):
        load(checkpoint, engine())
    (checkpoint / "config.json").write_text("{")
    with pytest.raises(ModelError, match="not a JSON object"):
        load(checkpoint, engine())
    (checkpoint / "config.json").unlink()
    with pytest.raises(ModelError, match=r"no config\.json"):
        load(checkpoint, engine())


def test_buffers_of_old_checkpoints_are_no_reason_to_refuse(checkpoint: Path):
    weights = load_file(checkpoint / "model.safetensors")
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})
    load(checkpoint, engine())


def test_tied_embeddings_are_one_tensor(tmp_path: Path):
    for decoder in (
        load(tiny.write(tmp_path / "saved", "qwen3"), engine()),
        dummy(tmp_path / "dummy", tiny.FAMILIES["qwen3"]()),
    ):
        model: Any = decoder.model
        assert model.lm_head.weight is model.model.embed_tokens.weight


def test_dummy_weights_need_a_config_alone_and_follow_the_seed(tmp_path: Path):
    config = tiny.FAMILIES["llama"]()
    before = torch.get_rng_state()
    first, again, other = (
        dict(dummy(tmp_path, config, seed=seed).model.state_dict()) for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), before)
    name = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])
    assert 0.01 < first[name].std() < 0.03
    alone = load(tmp_path / "config.json", engine(load_format="dummy", seed=1))
    assert torch.equal(alone.model.state_dict()[name], first[name])


def test_weights_and_kv_take_the_dtype_that_is_asked_for(checkpoint: Path):
    decoder = load(checkpoint, engine(dtype="bfloat16"))
    assert {each.dtype for each in decoder.model.parameters()} == {torch.bfloat16}
    assert survey(decoder, 64).dtype == torch.bfloat16
    assert pick_dtype("float16", CPU) == torch.float16
    assert pick_dtype("auto", CPU) in (torch.bfloat16, torch.float32)


def test_a_gpu_that_is_not_there_is_refused(checkpoint: Path):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ConfigError, match="no GPU"):
        load(checkpoint, engine(device="cuda"))


def test_defaults_are_taken_as_requests_can_have_them_and_others_are_left(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
):
    generation = {
        "top_k": 50.0,
        "temperature": 1,
        "top_p": 7,
        "min_p": "a",
        "repetition_penalty": [],
    }
    (checkpoint / "generation_config.json").write_text(json.dumps(generation))
    defaults = describe(checkpoint, engine()).sampling_defaults
    (checkpoint / "generation_config.json").unlink()
    assert defaults == {"top_k": 50, "temperature": 1.0}
    assert type(defaults["top_k"]) is int
    for name in ("top_p", "min_p", "repetition_penalty"):
        assert f"{name} is not used" in caplog.text


def test_stop_tokens_and_defaults_come_from_both_configs(checkpoint: Path):
    generation = {"eos_token_id": [5, 6], "temperature": 0.6, "top_k": 20, "do_sample": True}
    (checkpoint / "generation_config.json").write_text(json.dumps(generation))
    described = describe(checkpoint, engine())
    assert described.eos_token_ids == {2, 5, 6}
    assert described.sampling_defaults == {"temperature": 0.6, "top_k": 20}
    (checkpoint / "generation_config.json").unlink()
    assert describe(checkpoint, engine()).sampling_defaults == {}
