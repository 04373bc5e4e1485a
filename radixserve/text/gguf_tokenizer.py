"""The tokenizer that a GGUF file describes, written as Hugging Face tokenizer files.

A GGUF file names its pre-tokenizer without spelling it out; what each name stands for follows
``src/llama-vocab.cpp`` of llama.cpp, and for text normalization the models' own tokenizer.json.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from radixserve.errors import ModelError

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
PUNCTUATION_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3_SPLIT = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + PUNCTUATION_AND_SPACE
QWEN2_SPLIT = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + PUNCTUATION_AND_SPACE


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How a byte-level vocabulary wants text to be cut before the merges are applied."""

    split: str | None = None
    """A regular expression of words; None is GPT-2's own."""
    digits_apart: bool = False
    nfc: bool = False
    """Whether text is brought into Unicode normal form C first."""
    ignore_merges: bool = False
    """Whether a word that is a token is taken whole, reachable by merges or not."""
    add_bos: bool = False
    """What holds when the file does not say."""


GPT2 = PreTokenizer()
LLAMA3 = PreTokenizer(split=LLAMA3_SPLIT, ignore_merges=True, add_bos=True)
PRE_TOKENIZERS = {
    "smollm": PreTokenizer(digits_apart=True),
    "starcoder": PreTokenizer(digits_apart=True),
    "refact": PreTokenizer(digits_apart=True),
    "gpt-2": GPT2,
    "phi-2": GPT2,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "llama-bpe": LLAMA3,
    "falcon3": LLAMA3,
    "qwen2": PreTokenizer(split=QWEN2_SPLIT, nfc=True),
    "deepseek-r1-qwen": PreTokenizer(split=QWEN2_SPLIT),
}


def write_tokenizer(gguf_path: Path, directory: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template of ``gguf_path``.

    Reads the file's metadata only, no tensors.

    Raises:
        ModelError: the file cannot be read, or its tokenizer is of a kind that is not known here.
    """
    fields = _Fields(gguf_path)
    kind = fields.text("model")
    if kind == "gpt2":
        backend = _byte_level(fields)
    elif kind == "llama":
        backend = _sentencepiece(fields)
    else:
        raise ModelError(
            f"{gguf_path} has a {kind!r} tokenizer; only 'gpt2' and 'llama' can be read from GGUF. "
            "Name the model's Hugging Face files with --tokenizer."
        )
    _add_tokens(backend, fields)
    _write(backend, fields, directory)


class _Fields:
    """The ``tokenizer.ggml.*`` metadata of a GGUF file."""

    def __init__(self, path: Path):
        from gguf import GGUFReader

        self.path = path
        try:
            self._fields = GGUFReader(path).fields
        except (OSError, ValueError, IndexError) as error:
            raise ModelError(f"Cannot read {path}: {error}") from error
        self.tokens: list[str] = self._get("tokens", [])
        if not self.tokens:
            raise ModelError(f"{path} holds no tokenizer. Name one with --tokenizer.")
        self.kinds: list[int] = self._get("token_type", [1] * len(self.tokens))
        self.scores: list[float] = self._get("scores", [0.0] * len(self.tokens))
        if not len(self.tokens) == len(self.kinds) == len(self.scores):
            raise ModelError(
                f"The tokenizer in {path} is damaged: {len(self.tokens)} tokens have "
                f"{len(self.kinds)} types and {len(self.scores)} scores."
            )

    def text(self, name: str) -> str | None:
        value = self._get(name, None)
        return None if value is None else str(value)

    def flag(self, name: str, default: bool) -> bool:
        return bool(self._get(name, default))

    def items(self, name: str) -> list[Any]:
        return list(self._get(name, []))

    def token(self, name: str, default: int | None = None) -> tuple[int, str] | None:
        """Id and name of a token that the file names by its role."""
        token = self._get(f"{name}_token_id", default)
        if token is None or not 0 <= token < len(self.tokens):
            return None
        return int(token), self.tokens[token]

    @property
    def chat_template(self) -> str | None:
        field = self._fields.get("tokenizer.chat_template")
        return None if field is None else str(field.contents())

    def of_kind(self, *kinds: int) -> list[str]:
        return [token for token, kind in zip(self.tokens, self.kinds, strict=True) if kind in kinds]

    def _get(self, name: str, default: Any) -> Any:
        field = self._fields.get(f"tokenizer.ggml.{name}")
        return default if field is None else field.contents()


def _byte_level(fields: _Fields) -> Tokenizer:
    name = fields.text("pre")
    if name not in PRE_TOKENIZERS:
        raise ModelError(
            f"{fields.path} asks for the pre-tokenizer {name!r}, which is not known here "
            f"(known: {', '.join(PRE_TOKENIZERS)}). Name the model's Hugging Face files with "
            "--tokenizer."
        )
    known = PRE_TOKENIZERS[name]
    merges = [_pair(merge) for merge in fields.items("merges")]
    tokenizer = _bpe(fields, merges, ignore_merges=known.ignore_merges)
    if known.nfc:
        tokenizer.normalizer = normalizers.NFC()
    steps: list[pre_tokenizers.PreTokenizer] = []
    if known.digits_apart:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if known.split:
        steps.append(pre_tokenizers.Split(Regex(known.split), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=known.split is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    _add_bos(tokenizer, fields.token("bos"), fields.flag("add_bos_token", known.add_bos))
    return tokenizer


def _sentencepiece(fields: _Fields) -> Tokenizer:
    unknown = fields.token("unknown", 0)
    tokenizer = _bpe(
        fields,
        _merges_by_score(fields),
        unk_token=unknown and unknown[1],
        byte_fallback=True,
        fuse_unk=True,
    )
    prefix = fields.flag("add_space_prefix", True)
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    )
    steps: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback()]
    steps.append(decoders.Fuse())
    if prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    _add_bos(tokenizer, fields.token("bos", 1), fields.flag("add_bos_token", True))
    return tokenizer


def _bpe(fields: _Fields, merges: Sequence[tuple[str, str]], **settings: Any) -> Tokenizer:
    vocab = {token: index for index, token in enumerate(fields.tokens)}
    try:
        return Tokenizer(models.BPE(vocab=vocab, merges=merges, **settings))
    # tokenizers raises bare Exceptions, over merges of tokens that do not exist for example.
    except Exception as error:
        raise ModelError(f"The tokenizer in {fields.path} is damaged: {error}") from error


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _merges_by_score(fields: _Fields) -> list[tuple[str, str]]:
    """SentencePiece's rule as merges: of all pairs that join to a token, the best score first."""
    pieces = {
        token: score
        for token, kind, score in zip(fields.tokens, fields.kinds, fields.scores, strict=True)
        if kind == 1
    }
    pairs = [
        (-score, token[:cut], token[cut:])
        for token, score in pieces.items()
        for cut in range(1, len(token))
        if token[:cut] in pieces and token[cut:] in pieces
    ]
    pairs.sort(key=lambda pair: pair[0])
    return [(left, right) for _, left, right in pairs]


def _add_bos(tokenizer: Tokenizer, bos: tuple[int, str] | None, wanted: bool) -> None:
    if bos is None or not wanted:
        return
    token, name = bos
    tokenizer.post_processor = TemplateProcessing(
        single=[name, "$A"], pair=[name, "$A", name, "$B"], special_tokens=[(name, token)]
    )


def _add_tokens(tokenizer: Tokenizer, fields: _Fields) -> None:
    """Tokens that text may spell out: control tokens (special) and user-defined ones."""
    from gguf import TokenType

    special = fields.of_kind(TokenType.CONTROL, TokenType.UNKNOWN)
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in special])
    shown = fields.of_kind(TokenType.USER_DEFINED)
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in shown])


def _write(backend: Tokenizer, fields: _Fields, directory: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    sentencepiece = fields.text("model") == "llama"
    roles = {
        "bos_token": fields.token("bos", 1 if sentencepiece else None),
        "eos_token": fields.token("eos", 2 if sentencepiece else None),
        "unk_token": fields.token("unknown", 0 if sentencepiece else None),
        "pad_token": fields.token("padding"),
    }
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,
        **{role: token[1] for role, token in roles.items() if token is not None},
    )
    tokenizer.chat_template = fields.chat_template
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(directory)
    ends = {token[0] for token in (roles["eos_token"], fields.token("eot")) if token is not None}
    if len(ends) > 1:
        path = directory / "generation_config.json"
        path.write_text(json.dumps({"eos_token_id": sorted(ends)}), encoding="utf-8")
