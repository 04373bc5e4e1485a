from __future__ import annotations

from radixserve.prompts.audit import audit_messages


def test_two_reviews_share_the_instructions_and_differ_in_the_last_message():
    one = audit_messages("Now: {{ now }}")
    other = audit_messages("{{ question }}", requests=["Why?", "When?"])
    assert one[0] == other[0]
    assert "clocks" in one[0]["content"]
    assert one[-1]["content"] == "<template>\nNow: {{ now }}\n</template>"
    assert other[-1]["content"].count("<request>") == 2
