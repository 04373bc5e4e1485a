"""How large a model is: what its config says, and how its parameters are counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError
from transformers import AutoConfig, AutoModelForCausalLM

from radixserve.errors import ModelError
from tests.terminal.planning import LLAMA_8B_FULL, LLAMA_70B, invoke, numbers, refusal, room

SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
}


def config(tmp_path: Path, **changes: Any) -> Path:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(SMOLLM2 | changes), encoding="utf-8")
    return file


# Parameters.


def test_parameters_of_llama_8b_are_counted():
    answer = numbers(LLAMA_8B_FULL)
    assert answer["parameters"] == 8_030_261_248
    assert answer["weights"] == 16_060_522_496


def test_parameters_of_smollm2_are_counted_from_its_config(tmp_path: Path):
    answer = numbers(str(config(tmp_path)))
    assert answer["parameters"] == 134_515_008
    assert answer["context"] == 8192
    assert numbers(str(tmp_path)) == answer | {"model": str(tmp_path)}


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 24}),
        ("qwen3", {"attention_bias": True}),
        ("smollm3", {"pad_token_id": 0}),
    ],
)
def test_parameters_are_as_many_as_the_model_has(
    tmp_path: Path, family: str, changes: dict[str, Any]
):
    small = {
        "architectures": None, "model_type": family, "hidden_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_hidden_layers": 3, "vocab_size": 100,
        "intermediate_size": 48, "tie_word_embeddings": False, "max_position_embeddings": 128,
    }  # fmt: skip
    file = config(tmp_path, **small | changes)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(file))
    real = sum(parameter.numel() for parameter in model.parameters())
    assert numbers(str(file))["parameters"] == real


def test_parameters_of_other_families_have_to_be_given(tmp_path: Path):
    file = config(tmp_path, model_type="gpt2", architectures=["GPT2LMHeadModel"])
    assert numbers(str(file))["parameters"] is None
    message = refusal(f"{file} --memory 1GB")
    assert message == "How large are the weights? Give --parameters 70B or --weights-memory 140GB."
    assert refusal(f"{file} --bandwidth 1TB/s") == message
    assert room(f"{file} --memory 1GB --parameters 124M")["kv"] == 920_000_000 - 248_000_000


def test_given_weights_are_believed_over_counted_ones(tmp_path: Path):
    answer = numbers(f"{config(tmp_path)} --weights-memory 1GB --parameters 7B")
    assert (answer["weights"], answer["parameters"]) == (10**9, 7 * 10**9)


@pytest.mark.parametrize(("dtype", "weights"), [("fp32", 280), ("fp8", 70), ("int4", 35)])
def test_weights_have_the_bits_of_their_dtype(dtype: str, weights: int):
    assert numbers(f"{LLAMA_70B} --dtype {dtype}")["weights"] == weights * 10**9


# What a config says.


def test_an_option_changes_what_the_config_says(tmp_path: Path):
    answer = numbers(f"{config(tmp_path)} --layers 15 --kv-heads 1")
    assert (answer["layers"], answer["kv_heads"], answer["head_dim"]) == (15, 1, 64)


def test_a_context_beyond_the_models_is_warned_about(tmp_path: Path):
    file = config(tmp_path)
    output, warning = invoke(f"{file} --context 9000 --json")
    message = f"--context 9000 is more than the 8192 tokens that {file} was made for."
    assert warning == f"Warning: {message}\n"
    assert json.loads(output)["warnings"] == [message]
    assert invoke(f"{file} --context 8192")[1] == ""


def test_quantized_weights_are_warned_about(tmp_path: Path):
    quantization = {"quant_method": "awq", "bits": 4}
    _, warning = invoke(str(config(tmp_path, quantization_config=quantization)))
    assert warning.startswith("Warning: The config says that the weights are quantized")


@pytest.mark.parametrize("family", ["gpt_bigcode", "falcon"])
def test_kv_heads_are_asked_for_rather_than_guessed(tmp_path: Path, family: str):
    unsaid = {"architectures": None, "num_key_value_heads": None, "multi_query": True}
    file = config(tmp_path, model_type=family, **unsaid)
    message = refusal(str(file))
    assert message == "How large is the model? Name one that says it, or give --kv-heads."
    assert numbers(f"{file} --kv-heads 1")["token"] == 30 * 2 * 64 * 2


def test_a_model_that_does_not_say_its_context_is_asked_for_it(tmp_path: Path):
    file = config(tmp_path, max_position_embeddings=-1)
    assert "set --max-model-len" in refusal(str(file))
    assert numbers(f"{file} --max-model-len 100000")["context"] == 100_000


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "deepseek_v3", "architectures": None}, "multi-head latent attention"),
        ({"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"]}, "attention sinks"),
        ({"model_type": "t5", "architectures": None}, "encoder-decoder"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding window of 4096"),
        ({"model_type": "unheard_of"}, "unheard_of"),
        ({"num_hidden_layers": "many"}, "cannot be read"),
    ],
)
def test_a_model_whose_kv_is_of_another_kind_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
):
    assert words in refusal(str(config(tmp_path, **changes)), ModelError)


def test_sizes_that_differ_between_layers_are_refused(tmp_path: Path):
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "gemma3n_text", "sliding_window": 512}', encoding="utf-8")
    message = refusal(f"{file} --context 500", ModelError)
    assert message == "intermediate_size differs between layers, which is not supported."


def test_a_file_that_is_not_there_is_refused(tmp_path: Path):
    for name in (tmp_path / "config.json", tmp_path, "./none/of/these", "x" * 5000 + ".json"):
        assert "there is no" in refusal(str(name), ModelError)


def test_a_file_that_is_no_config_is_refused(tmp_path: Path):
    (tmp_path / "config.json").write_text("[1]", encoding="utf-8")
    assert "is not a JSON object" in refusal(str(tmp_path), ModelError)
    assert "not a GGUF" in refusal(str(tmp_path / "model.gguf"), ModelError)


def hub(monkeypatch: pytest.MonkeyPatch, result: Path | Exception) -> list[tuple[str, str]]:
    asked: list[tuple[str, str]] = []

    def download(repository: str, file: str) -> str:
        asked.append((repository, file))
        if isinstance(result, Exception):
            raise result
        return str(result)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return asked


def test_of_a_hub_model_only_the_config_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    asked = hub(monkeypatch, config(tmp_path))
    answer = numbers("HuggingFaceTB/SmolLM2-135M")
    assert asked == [("HuggingFaceTB/SmolLM2-135M", "config.json")]
    assert (answer["model"], answer["parameters"]) == ("HuggingFaceTB/SmolLM2-135M", 134_515_008)


RESPONSE = httpx2.Response(404, request=httpx2.Request("GET", "https://hub.test"))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (LocalEntryNotFoundError("offline"), "the hub cannot be reached"),
        (RepositoryNotFoundError("no", response=RESPONSE), "no model on the Hugging Face hub"),
        (GatedRepoError("no", response=RESPONSE), "is gated"),
        (OSError("disk full\nand more"), "cannot be downloaded: disk full"),
    ],
)
def test_a_hub_that_does_not_answer_is_one_line(
    monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
):
    hub(monkeypatch, error)
    message = refusal("some/model", ModelError)
    assert "some/model" in message
    assert words in message


def test_names_cannot_steer_the_terminal(tmp_path: Path):
    folder = tmp_path / "[red]\x1b[31m"
    folder.mkdir()
    config(folder)
    output, _ = invoke(str(folder))
    assert "[red]" in output
    assert "\x1b" not in output
