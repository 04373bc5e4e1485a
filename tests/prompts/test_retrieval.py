from __future__ import annotations

from radixserve.prompts.retrieval import retrieval_messages

DOCUMENTS = [("Trees", "A tree has nodes.\n"), ("Pages", "A page holds 16 tokens.")]


def test_two_questions_over_the_same_documents_differ_only_in_the_last_message():
    first = retrieval_messages(DOCUMENTS, "What has nodes?")
    second = retrieval_messages(DOCUMENTS, "What holds tokens?")
    assert first[:-1] == second[:-1]
    assert first[-1] == {"role": "user", "content": "What has nodes?"}


def test_the_documents_keep_their_order_titles_and_texts():
    [system, _] = retrieval_messages(DOCUMENTS, "?")
    assert system["content"].endswith(
        "Document: Trees\nA tree has nodes.\n\nDocument: Pages\nA page holds 16 tokens."
    )
