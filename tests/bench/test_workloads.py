from __future__ import annotations

import random

import pytest

from bench import workloads
from bench.workloads import SHAREGPT, Workload, shared_tokens


def brute_force(prompts: list[list[int]]) -> list[int]:
    found = []
    for number, prompt in enumerate(prompts):
        best = 0
        for other in prompts[:number]:
            common = 0
            for left, right in zip(prompt, other, strict=False):
                if left != right:
                    break
                common += 1
            best = max(best, common)
        found.append(min(best, len(prompt) - 1))
    return found


def test_the_first_prompt_shares_nothing_and_a_repeated_one_all_but_its_last_token() -> None:
    assert shared_tokens([[1, 2, 3], [1, 2, 3]]) == [0, 2]


def test_only_earlier_prompts_count() -> None:
    assert shared_tokens([[1, 2, 3, 4], [1, 2, 9], [1, 2, 3, 4, 5]]) == [0, 2, 4]


def test_shared_tokens_agree_with_a_comparison_of_all_pairs() -> None:
    rng = random.Random(7)
    prompts = [[rng.randrange(3) for _ in range(rng.randint(1, 12))] for _ in range(300)]

    assert shared_tokens(prompts) == brute_force(prompts)


def test_token_order_is_kept_beyond_one_byte() -> None:
    prompts = [[256, 1], [1, 256], [256, 1, 7], [1, 256, 7]]

    assert shared_tokens(prompts) == [0, 0, 2, 2]


def test_drawn_tokens_are_the_same_for_the_same_seed_only() -> None:
    assert workloads.drawn(("a", 1), 50) == workloads.drawn(("a", 1), 50)
    assert workloads.drawn(("a", 1), 50) != workloads.drawn(("a", 2), 50)


def test_prefix_repetition_shares_each_prefix_with_all_but_its_first_user() -> None:
    workload = workloads.prefix_repetition(prefixes=2, prompts=6, prefix=32, suffix=8, output=4)

    assert sum(shared_tokens(turn.prompt for turn in workload.turns)) == (6 - 2) * 32
    assert {len(turn.prompt) for turn in workload.turns} == {40}


def test_generated_shared_prefix_has_its_groups_and_lengths() -> None:
    workload = workloads.generated_shared_prefix(
        groups=3, per_group=4, system=20, question=5, output=2
    )

    assert len(workload.turns) == 12
    assert len({tuple(turn.prompt[:20]) for turn in workload.turns}) == 3
    assert len({tuple(turn.prompt) for turn in workload.turns}) == 12


def test_a_later_turn_begins_with_the_whole_history() -> None:
    workload = workloads.multi_turn(clients=2, rounds=3, request=10, output=4, stagger=1.0)

    for conversation in workload.conversations:
        lengths = [len(turn.prompt) for turn in conversation.turns]
        assert lengths == [10, 24, 38]
        for before, after in zip(conversation.turns, conversation.turns[1:], strict=False):
            assert after.prompt[: len(before.prompt)] == before.prompt


def test_three_documents_take_60_percent_of_the_retrieval() -> None:
    names: dict[str, int] = {}

    def encode(text: str) -> list[int]:
        # A document is as long as its text and made of one token, so that it can be told apart.
        return [names.setdefault(text, 1 + len(names))] * (len(text) // 4)

    workload = workloads.rag(encode, requests=1000, chunk=40, question=3, output=1)
    instruction = next(iter(workload.turns)).prompt[0]
    users: dict[int, int] = {}
    for turn in workload.turns:
        passages = [token for token in turn.prompt[:-3] if token != instruction]
        assert len(set(passages)) == 1
        assert 40 < len(passages) <= 4 * 40
        users[passages[0]] = users.get(passages[0], 0) + 1
    lengths = {number: len(text) for text, number in names.items()}
    longest = sorted(users, key=lambda number: lengths[number], reverse=True)[:3]

    assert sum(users[number] for number in longest) / 1000 == pytest.approx(0.6, abs=0.06)


@pytest.mark.parametrize("rate", [0.5, 20.0])
def test_poisson_arrivals_come_at_their_rate(rate: float) -> None:
    workload = workloads.poisson(SHAREGPT, requests=2000, rate=rate, longest=2048, name="p")

    last = workload.conversations[-1].start
    assert 2000 / last == pytest.approx(rate, rel=0.1)


def test_requests_at_an_infinite_rate_start_together() -> None:
    workload = workloads.poisson(SHAREGPT, requests=5, rate=float("inf"), longest=99, name="p")

    assert [each.start for each in workload.conversations] == [0.0] * 5


def test_lengths_have_the_means_of_their_data_set() -> None:
    rng = random.Random(3)
    drawn = [SHAREGPT.draw(rng, longest=100_000) for _ in range(20_000)]

    assert sum(prompt for prompt, _ in drawn) / len(drawn) == pytest.approx(161, rel=0.05)
    assert sum(output for _, output in drawn) / len(drawn) == pytest.approx(338, rel=0.05)


def test_lengths_stay_within_their_bounds() -> None:
    rng = random.Random(3)
    drawn = [SHAREGPT.scaled(0.01).draw(rng, longest=4) for _ in range(500)]

    assert {1, 4} <= {length for pair in drawn for length in pair} <= {1, 2, 3, 4}


def test_unshared_prompts_share_nothing() -> None:
    workload = workloads.unshared(requests=50, prompt=6, output=1)

    assert sum(shared_tokens(turn.prompt for turn in workload.turns)) == 0


def test_a_workload_lists_the_turns_of_its_conversations() -> None:
    whole = workloads.multi_turn(clients=3, rounds=2, request=4, output=1, stagger=1.0)

    assert len(Workload("w", whole.conversations).turns) == 6
