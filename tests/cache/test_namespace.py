from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from radixserve.cache.namespace import Namespace, client_namespace, on_engine
from radixserve.cache.prefix_cache import PrefixCache
from tests.cache.serving import found, serve

NAMES = Namespace.__struct_fields__


@pytest.mark.parametrize("name", NAMES)
def test_every_field_keeps_apart(name: str) -> None:
    base = Namespace(tenant="t", salt="s", adapter="a", weights="w", kv_format="k", extra="e")
    others = [replace(base, **{name: value}) for value in (None, "", "x")]
    assert len({base.key(), *(other.key() for other in others)}) == 4


def test_the_key_is_injective() -> None:
    values = (None, "", "a", "b", "ab", "\0", "\1\0\0\0\1a", "é", "\ud800")
    keys = {
        Namespace(tenant=tenant, salt=salt, adapter=adapter).key()
        for tenant, salt, adapter in product(values, repeat=3)
    }
    assert len(keys) == len(values) ** 3


TEXTS = st.none() | st.text(max_size=6) | st.sampled_from(["", "\0", "\1\0\0\0\1a", "\ud800"])
NAMESPACES = st.builds(Namespace, **dict.fromkeys(NAMES, TEXTS))


@given(NAMESPACES, NAMESPACES)
def test_two_namespaces_that_differ_have_keys_that_differ(one: Namespace, other: Namespace) -> None:
    assert (one.key() == other.key()) == (one == other)


@given(NAMESPACES, st.sampled_from(NAMES), TEXTS)
def test_one_field_that_differs_is_enough(one: Namespace, name: str, value: str | None) -> None:
    other = replace(one, **{name: value})
    assert (one.key() == other.key()) == (one == other)


@given(NAMESPACES)
def test_each_field_is_written_with_its_number_and_its_length(one: Namespace) -> None:
    key, found = one.key(), {}
    while key:
        length = int.from_bytes(key[1:5], "big")
        found[NAMES[key[0]]] = key[5 : 5 + length].decode("utf-8", "surrogatepass")
        key = key[5 + length :]
    assert Namespace(**found) == one


def test_no_value_can_pass_for_another_field() -> None:
    assert Namespace(tenant="x").key() != Namespace(salt="x").key()
    assert Namespace(tenant="a", salt="b").key() != Namespace(tenant="ab").key()
    inner = Namespace(salt="x").key().decode("latin-1")
    assert Namespace(tenant=inner).key() != Namespace(tenant="", salt="x").key()


def test_the_key_is_the_same_every_time() -> None:
    assert Namespace(tenant="t", salt="s").key() == Namespace(tenant="t", salt="s").key()
    assert Namespace().key() == b""


def test_a_salt_that_is_no_unicode_is_a_salt_like_any_other() -> None:
    assert client_namespace("\ud800") != client_namespace("\ud801")
    assert client_namespace("") != client_namespace(None) == b""


def test_no_client_can_pass_for_another_format_of_kv() -> None:
    formats = (None, "", "a", "b", "ab")
    clients = [Namespace(tenant=tenant, salt=salt) for tenant, salt in product(formats, repeat=2)]
    keys = {on_engine(kv, client.key()) for kv, client in product(formats, clients)}
    assert len(keys) == len(formats) * len(clients)


def test_kv_of_two_formats_is_never_shared() -> None:
    cache = PrefixCache(64, 4)
    one, two = (on_engine(kv, client_namespace("salt")) for kv in ("fp8 1", "fp8 2"))
    serve(cache, range(10), one)
    assert found(cache, range(10), one) == 10
    assert found(cache, range(10), two) == 0


def test_tenants_share_with_themselves_only() -> None:
    cache = PrefixCache(64, 4)
    one, two = Namespace(tenant="1").key(), Namespace(tenant="2").key()
    serve(cache, range(10), one)
    assert found(cache, range(10), one) == 10
    assert found(cache, range(10), two) == 0
    assert found(cache, range(10)) == 0
