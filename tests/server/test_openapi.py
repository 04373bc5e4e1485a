"""The description of the API tells of every route and every field that is honoured."""

from __future__ import annotations

from starlette.routing import Route
from starlette.testclient import TestClient

from radixserve.server.app import create_app
from radixserve.server.wire import ChatRequest
from tests.server.fake import FakeFrontend


def test_every_route_and_every_honoured_field_is_described(client: TestClient):
    told = client.get("/openapi.json").json()
    assert told["openapi"].startswith("3.1")
    routes = [each for each in create_app(FakeFrontend()).routes if isinstance(each, Route)]
    for route in routes:
        methods = told["paths"][route.path.replace(":path}", "}")]
        assert set(methods) >= {each.lower() for each in (route.methods or set()) - {"HEAD"}}
    chat = told["paths"]["/v1/chat/completions"]["post"]
    schema = chat["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/ChatRequest"}
    fields = told["components"]["schemas"]["ChatRequest"]
    assert set(fields["properties"]) == set(ChatRequest.__struct_fields__)
    assert fields["required"] == ["messages"]
    names = {each["operationId"] for path in told["paths"].values() for each in path.values()}
    assert len(names) == sum(len(path) for path in told["paths"].values())


def test_nothing_refers_to_what_is_not_there(client: TestClient):
    told = client.get("/openapi.json")
    known = told.json()["components"]["schemas"]
    for part in told.text.split('"#/components/schemas/')[1:]:
        assert part.split('"')[0] in known


def test_what_endpoints_declare_is_told(client: TestClient):
    told = client.get("/openapi.json").json()
    answer = told["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    assert set(answer) == {"application/json", "text/event-stream"}
    assert "ChatChoice" in answer["application/json"]["schema"]["$ref"]
    [bounded, _] = told["components"]["schemas"]["ChatRequest"]["properties"]["timeout"]["anyOf"]
    assert bounded == {"type": "number", "exclusiveMinimum": 0.0, "maximum": 86400.0}
    models = told["paths"]["/v1/models"]["get"]["responses"]["200"]["content"]
    assert len(models["application/json"]["schema"]["anyOf"]) == 2
