"""Text to tokens and back, and chat messages to prompts: everything a model's files say of text."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

from radixserve.errors import InvalidRequestError, ModelError
from radixserve.text.chat_template import ChatTemplate
from radixserve.text.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from radixserve.text.grammar import TokenTable
from radixserve.text.seams import read_seams
from radixserve.text.vocabulary import (
    read_bound,
    read_vocabulary,
    special_ids,
    vocabulary_size,
)
from radixserve.tokens import pack

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Tokenizer:
    """A model's tokenizer and chat template. Immutable, so any number of threads may share it.

    ``encode`` and ``encode_chat`` let other threads run while they tokenize.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        templates: Mapping[str, ChatTemplate],
        eos_token_ids: Sequence[int],
    ):
        # Files may carry the truncation and padding of their training.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._templates = templates
        self._special = special_ids(backend)
        self.special_tokens = {
            token.content: each
            for each, token in backend.get_added_tokens_decoder().items()
            if each in self._special
        }
        """Ids of the special tokens by their texts."""
        self._hidden_beside: dict[tuple[str, ...], frozenset[int]] = {(): self._special}
        self._vocabulary = read_vocabulary(backend)
        self.vocab_size = vocabulary_size(backend)
        """One more than the highest token id."""
        self.eos_token_ids = tuple(eos_token_ids)
        """Tokens that end an answer, the tokenizer's own first, then those of the generation
        config."""
        self._bound = read_bound(backend)
        self.added_ids = frozenset(backend.get_added_tokens_decoder())
        """Tokens that are found in a text before all others are made."""
        self.adds_tokens = backend.num_special_tokens_to_add(is_pair=False) > 0
        """Whether ``encode`` with ``add_special_tokens`` adds any."""
        ends = {backend.id_to_token(token) for token in self.eos_token_ids}
        self.seams = read_seams(
            backend,
            lambda text: text in ends or any(each.may_write(text) for each in templates.values()),
        )
        """Where prompts of chats can be cut."""

    @classmethod
    def load(cls, directory: Path, *, chat_template: str | Path | None = None) -> Tokenizer:
        """Read the tokenizer in ``directory``; ``chat_template`` replaces the model's own.

        Raises:
            ModelError: a file is missing or cannot be read, or a chat template is not valid.
        """
        slow = _read(directory)
        if chat_template is not None:
            try:
                source: Any = Path(chat_template).read_text(encoding="utf-8")
            except (OSError, UnicodeError) as error:
                raise ModelError(f"Cannot read chat template {chat_template}: {error}") from error
        else:
            source = slow.chat_template
        named = source if isinstance(source, dict) else {"default": source} if source else {}
        templates = {}
        for name, text in named.items():
            try:
                templates[name] = ChatTemplate(text, slow.special_tokens_map)
            except ModelError as error:
                where = chat_template or directory
                raise ModelError(
                    f"The chat template of {where} is not valid: {error}. "
                    "Pass another with --chat-template FILE."
                ) from error
        eos = [] if slow.eos_token_id is None else [slow.eos_token_id]
        eos += [token for token in _generation_eos(directory) if token not in eos]
        return cls(slow.backend_tokenizer, templates=templates, eos_token_ids=eos)

    @property
    def eos_token_id(self) -> int | None:
        """The first of ``eos_token_ids``."""
        return self.eos_token_ids[0] if self.eos_token_ids else None

    def fewest_tokens(self, text: str) -> int:
        """A lower bound of the tokens of ``text``, without tokenizing: to refuse what is too long.

        O(len(text)), at the speed of a copy.
        """
        return self._bound.fewest_tokens(text)

    @property
    def has_chat_template(self) -> bool:
        return "default" in self._templates

    @property
    def chat_template_source(self) -> str:
        """The Jinja text of the model's chat templates; empty if it has none."""
        return "\n".join(each.source for each in self._templates.values())

    @property
    def takes_tools(self) -> bool:
        """Whether a chat template tells the model of tools."""
        return any(each.takes_tools for each in self._templates.values())

    def encode(self, text: str, *, add_special_tokens: bool = True, param: str = "prompt") -> bytes:
        """The tokens of ``text``, int32 packed big-endian.

        Raises:
            InvalidRequestError: ``text`` holds a lone surrogate, which no encoding has; the error
                names ``param``.
        """
        [tokens] = self.encode_each([text], add_special_tokens=add_special_tokens, param=param)
        return tokens

    def encode_each(
        self, texts: list[str], *, add_special_tokens: bool = True, param: str = "prompt"
    ) -> list[bytes]:
        """The tokens of each of ``texts``, as ``encode`` has them.

        Raises:
            InvalidRequestError: as ``encode``.
        """
        # The batch call is the one that releases the GIL; `encode` holds it to the end.
        try:
            encodings = self._backend.encode_batch_fast(
                texts, add_special_tokens=add_special_tokens
            )
        except TypeError as error:
            raise InvalidRequestError(
                f"{param} is not valid Unicode: it holds half of a surrogate pair.", param=param
            ) from error
        return [pack(encoding.ids) for encoding in encodings]

    def spelling(self, tokens: Sequence[int]) -> str | None:
        """The text that ``tokens`` stand for behind other text, special tokens among it; None where
        that cannot be told for certain, as with half a character."""
        if self._vocabulary is None:
            return None
        if any(not 0 <= token < len(self._vocabulary.pieces) for token in tokens):
            return None
        try:
            return b"".join(self._vocabulary.pieces[token] for token in tokens).decode("utf-8")
        except UnicodeDecodeError:
            return None

    def starts(self, text: str) -> list[int]:
        """Where in ``text``, in characters, each token begins that ``encode`` makes of it without
        special tokens; those that share a character begin at the same place."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        return [start for start, _ in encoding.offsets]

    def places(
        self, text: str, ends: Sequence[int], *, add_special_tokens: bool = True
    ) -> list[int]:
        """How many of the tokens of ``text`` end at or before each of its characters ``ends``,
        counted from 0: a token that reaches beyond does not count.

        O(what ``encode`` costs): the tokens are made again, since only so it is known where they
        stand.
        """
        [encoding] = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)
        stops = [stop for _, stop in encoding.offsets]
        return [bisect_right(stops, end) for end in ends]

    def spelt_by(self, tokens: Sequence[int], text: str) -> int:
        """How many of the last ``tokens`` stand for any of ``text``, with which what they spell
        (``spelling``) ends. O(those)."""
        if self._vocabulary is None:
            return len(tokens)
        left = len(text.encode("utf-8", "surrogatepass"))
        for taken, token in enumerate(reversed(tokens)):
            if left <= 0:
                return taken
            left -= len(self._vocabulary.pieces[token])
        return len(tokens)

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ``tokens``; bytes that are not UTF-8 become U+FFFD, unknown ids nothing."""
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens)
        pieces = [detokenizer.push(token) for token in tokens]
        return "".join(pieces) + detokenizer.finish()

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token alone, special or not; none for an id that does not exist."""
        if self._vocabulary is None:
            return self.decode([token_id], skip_special_tokens=False).encode("utf-8")
        known = 0 <= token_id < len(self._vocabulary.pieces)
        return self._vocabulary.pieces[token_id] if known else b""

    def token_text(self, token_id: int) -> str:
        """The text of one token alone, U+FFFD for what is not a whole character."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def table(self) -> TokenTable | None:
        """What grammars are compiled for; None where tokens do not stand for bytes of the text."""
        if self._vocabulary is None:
            return None
        special = sorted(self._vocabulary.special)
        return TokenTable(self._vocabulary.pieces, special, self.eos_token_ids, self._backend)

    def detokenizer(
        self,
        *,
        skip_special_tokens: bool = True,
        continuation: bool = False,
        markers: tuple[str, ...] = (),
    ) -> Detokenizer:
        """A new detokenizer, for one answer.

        Args:
            continuation: The text will be put behind other text, so that the space that some
                tokenizers put in front of a text is meant when the model generates it.
            markers: Texts whose special tokens are not skipped.
        """
        hidden = self._hidden(markers) if skip_special_tokens else frozenset()
        if self._vocabulary is not None:
            return ByteDetokenizer(self._vocabulary, hidden=hidden, continuation=continuation)
        return WindowDetokenizer(self._backend, self.vocab_size, hidden)

    def _hidden(self, markers: tuple[str, ...]) -> frozenset[int]:
        """The special tokens that are part of none of ``markers``."""
        if markers not in self._hidden_beside:
            # Few sets of markers are ever asked for: those of the model's formats.
            self._hidden_beside[markers] = frozenset(
                token
                for token in self._special
                if not any(self.token_text(token) in marker for marker in markers)
            )
        return self._hidden_beside[markers]

    def render_chat(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        **settings: Any,
    ) -> str:
        """The prompt of ``messages``; content parts are joined as the template needs them.

        Args:
            settings: those of ``ChatTemplate.render``.

        Raises:
            InvalidRequestError: the model has no chat template, or it cannot render these messages.
        """
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        if name not in self._templates:
            raise InvalidRequestError(
                "This model has no chat template, so it cannot take messages. Use "
                "/v1/completions, or start the server with --chat-template FILE.",
                param="messages",
                code="no_chat_template",
            )
        return self._templates[name].render(messages, tools=tools, **settings)

    def encode_chat(self, messages: list[dict[str, Any]], **settings: Any) -> bytes:
        """The tokens of ``render_chat``; the template writes special tokens, none are added.

        Raises:
            InvalidRequestError: as ``render_chat`` and ``encode``.
        """
        prompt = self.render_chat(messages, **settings)
        return self.encode(prompt, add_special_tokens=False, param="messages")


def _read(directory: Path) -> PreTrainedTokenizerBase:
    """transformers' tokenizer, for what it knows of its many files."""
    if not directory.is_dir():
        raise ModelError(f"No tokenizer at {directory}: there is no such directory.")
    try:
        if (directory / "tokenizer.json").is_file():
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast.from_pretrained(directory, local_files_only=True)
        from transformers import AutoTokenizer

        slow = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    # tokenizers raises bare Exceptions over files that it cannot parse.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(f"Cannot read the tokenizer in {directory}: {reason}") from error
    if not hasattr(slow, "backend_tokenizer"):
        raise ModelError(
            f"The tokenizer in {directory} has no fast version (tokenizer.json), which is needed."
        )
    return slow


def _generation_eos(directory: Path) -> list[int]:
    path = directory / "generation_config.json"
    if not path.is_file():
        return []
    try:
        eos = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"Cannot read {path}: {error}") from error
    if eos is None:
        return []
    return [eos] if isinstance(eos, int) else list(eos)
