"""Small tokenizers, built in memory or written as a model's files."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from radixserve.text.vocabulary import byte_level_alphabet

HERMES = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}"
    "{% for message in messages %}<{{ message.role }}>"
    "{% if message.reasoning_content %}({{ message.reasoning_content }}){% endif %}"
    "{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "[{{ call.function.name }} {{ call.function.arguments | tojson }}]{% endfor %}{% endfor %}"
)

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_level(*, specials: tuple[str, ...] = SPECIALS, merges: bool = True) -> Tokenizer:
    """Byte-level BPE: the special tokens, then 256 bytes, then a few merges."""
    letters = sorted(byte_level_alphabet(), key=byte_level_alphabet().__getitem__)
    pairs = [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "t"), ("Ġt", "he"), ("Ã", "©"), ("ì", "ķ")]
    names = [*specials, *letters, *(("".join(pair) for pair in pairs) if merges else ())]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={name: token for token, name in enumerate(names)},
            merges=pairs if merges else [],
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in specials])
    return tokenizer


def sentencepiece(*, strip: bool = True) -> Tokenizer:
    """SentencePiece-style BPE with byte fallback, as in Llama 2 (strip) or Gemma (no strip)."""
    pairs = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("l", "l"), ("▁", "▁")]
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz.,", "é", "안"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    names += ["".join(pair) for pair in pairs]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={name: token for token, name in enumerate(names)},
            merges=pairs,
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if strip else spaces
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(
        [*steps, decoders.Strip(" ", 1, 0)] if strip else steps  # type: ignore[list-item]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def wordpiece() -> Tokenizer:
    """WordPiece with BERT's decoder, which puts spaces between words and none before '.'."""
    names = ["[UNK]", "[SEP]", "the", "cat", "##s", "sat", "un", "##able", ".", ",", "n't", "don"]
    tokenizer = Tokenizer(
        models.WordPiece(vocab={name: i for i, name in enumerate(names)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s"), "removed")
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[UNK]", "[SEP]"])
    return tokenizer


def metaspace() -> Tokenizer:
    """Words marked by ▁ with the Metaspace decoder, as in T5."""
    names = ["<unk>", "▁the", "▁cat", "s", "▁", "▁▁", "."]
    tokenizer = Tokenizer(
        models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[], unk_token="<unk>")
    )
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<unk>"])
    return tokenizer


def tiny_tokenizer_dir(
    directory: Path,
    *,
    backend: Tokenizer | None = None,
    chat_template: str | None = CHATML,
    eos_token: str = "<|im_end|>",
) -> Path:
    """Write ``backend`` (by default byte-level, 266 tokens) as a model's tokenizer files.

    The default has <|endoftext|> 0, <|im_start|> 1, <|im_end|> 2 (end of sequence), byte b as
    token 3 + b, and a ChatML template.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend or byte_level(),
        eos_token=eos_token,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(directory)
    return directory
