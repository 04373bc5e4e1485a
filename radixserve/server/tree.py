"""``GET /v1/cache/tree``: the live tree of the prefix cache, as the page at ``/cache`` draws it."""

from __future__ import annotations

import msgspec

from radixserve.cache.view import NodeView
from radixserve.server.endpoint import Call
from radixserve.server.parameters import page_length
from radixserve.tokens import unpack

SHOWN = 500
MOST = 5000


class NodeObject(msgspec.Struct, kw_only=True):
    """An edge of the tree: the tokens ``start`` to ``end`` of all prompts that begin this way."""

    id: int
    above: int | None
    start: int
    end: int
    idle: int
    """Steps since it was used; for one tenant of several its place in the order of age."""
    pins: int
    hits: int
    hidden_children: int
    tenant: str | None
    """None is everybody's: a public prefix."""
    text: str | None
    """How the edge begins; None where it is somebody else's."""


class TreeObject(msgspec.Struct, kw_only=True):
    page_size: int
    nodes: list[NodeObject]
    total_nodes: int | None


async def cache_tree(call: Call) -> TreeObject:
    """Nodes of the tree, parents before children, what was used last first; ``limit`` (1 to 5000,
    500 unless told) says how many at most.

    A tenant is shown what is its own. Who may see the metrics of all is shown every node, but the
    text of its own and of public ones alone.
    """
    frontend, own = call.service.frontend, call.tenant
    limit = page_length(call.query_params, SHOWN, MOST)
    tree = await frontend.survey(limit, None if call.visit.may("metrics") else own)

    def told(node: NodeView) -> NodeObject:
        text = None
        if node.tenant in (own, None):
            text = frontend.tokenizer.decode(unpack(node.head), skip_special_tokens=False)
        return NodeObject(
            id=node.id,
            above=node.above,
            start=node.start,
            end=node.end,
            idle=node.idle,
            pins=node.pins,
            hits=node.hits,
            hidden_children=node.hidden,
            tenant=node.tenant,
            text=text,
        )

    nodes = await call.service.text_work(lambda: [told(node) for node in tree.nodes])
    return TreeObject(page_size=frontend.card.page_size, nodes=nodes, total_nodes=tree.total)
