"""Questions about documents, so that what they have in common is computed once::

from radixserve.rag import Document, Rag

rag = Rag("http://127.0.0.1:8000", order="cached")
answer = rag.ask("What is a page?", [Document("pages", "A page holds 16 tokens.")])
print(answer.text, answer.table(), sep="\n")
"""

from radixserve.rag.answer import DocumentReuse, RagAnswer
from radixserve.rag.client import Order, Rag
from radixserve.rag.document import Document
from radixserve.rag.totals import DocumentTotal, by_document

__all__ = [
    "Document",
    "DocumentReuse",
    "DocumentTotal",
    "Order",
    "Rag",
    "RagAnswer",
    "by_document",
]
