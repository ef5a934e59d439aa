"""The OpenAPI document, made of the declared endpoints."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

import nearcast
from nearcast.server.http.endpoint import ENDPOINTS, Endpoint, HttpAnswer, NoQuery, Role
from nearcast.server.http.problem import Problem

_REF = "#/components/schemas/{name}"
_PROBLEMS = {
    400: "The request is not well formed.",
    401: "Log in first, or the login was refused.",
    403: "The role may not do this, or the request looks forged.",
    404: "There is no such thing.",
    405: "The path has no such method.",
    409: "The present state does not allow it.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    421: "The Host header has a name that is not ours.",
    422: "The request is well formed and cannot be carried out.",
    429: "Too many failed logins; Retry-After says how long to wait.",
    431: "The head of the request is too large.",
    500: "A mistake of ours; the log has it.",
}


@cache
def document() -> bytes:
    """Return the document as JSON."""
    types: list[Any] = [Problem]
    for one in ENDPOINTS:
        types += [one.query, *([one.body] if one.body is not None else [])]
        if _has_schema(one):
            types.append(one.answer)
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    by_type = dict(zip(map(_key, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in ENDPOINTS:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, by_type, components)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Nearcast",
                "version": nearcast.__version__,
                "description": "What a broker is doing, and what an operator may do with it.",
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "servers": [{"url": "/"}],
            "paths": paths,
            "components": {
                "schemas": {
                    name: _for_all_tools(one)
                    for name, one in components.items()
                    if not name.endswith("Query")
                },
                "securitySchemes": {
                    "token": {"type": "http", "scheme": "bearer"},
                    "cookie": {
                        "type": "apiKey",
                        "in": "cookie",
                        "name": "nearcast-<port>",
                        "description": "Of POST /api/session. Changes also need the header "
                        "X-CSRF-Token with the csrf of /api/session.",
                    },
                },
            },
        }
    )


def _for_all_tools(schema: Any) -> Any:
    """Return a schema without `prefixItems`, which not all tools know: a tuple is a short array."""
    if isinstance(schema, list):
        return [_for_all_tools(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _for_all_tools(one) for key, one in schema.items()}
    if "prefixItems" in found:
        kinds = found.pop("prefixItems")
        found["items"] = {"anyOf": [one for at, one in enumerate(kinds) if one not in kinds[:at]]}
    return found


def _key(kind: Any) -> str:
    return repr(kind)


def _has_schema(one: Endpoint) -> bool:
    return one.answer not in (type(None), None, HttpAnswer)


def _operation(
    one: Endpoint, by_type: dict[str, Any], components: dict[str, Any]
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": one.name,
        "summary": one.summary,
        "description": f"Role: {one.role.word}.",
        "security": [{"token": []}, {"cookie": []}] if one.role is not Role.NOBODY else [],
        "responses": _responses(one, by_type),
    }
    parameters = [*_path_parameters(one), *_query_parameters(one, components)]
    if parameters:
        operation["parameters"] = parameters
    if one.body is not None:
        content = {"application/json": {"schema": by_type[_key(one.body)]}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _path_parameters(one: Endpoint) -> list[dict[str, Any]]:
    names = [piece[1:-1] for piece in one.path.split("/") if piece[:1] == "{"]
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in names
    ]


def _query_parameters(one: Endpoint, components: dict[str, Any]) -> list[dict[str, Any]]:
    if one.query is NoQuery:
        return []
    schema = components[one.query.__name__]
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": field}
        for name, field in schema["properties"].items()
    ]


def _responses(one: Endpoint, by_type: dict[str, Any]) -> dict[str, Any]:
    problem = {"application/problem+json": {"schema": by_type[_key(Problem)]}}
    found: dict[str, Any] = {}
    if one.answer in (type(None), None):
        found["204"] = {"description": "Done."}
    else:
        schema = by_type[_key(one.answer)] if _has_schema(one) else {"type": "object"}
        content = {one.kind: {"schema": schema}}
        found["200"] = {"description": one.summary, "content": content}
        if one.may_be_empty:
            found["204"] = {"description": "There is none."}
        if one.method == "GET":
            found["304"] = {"description": "As the caller knows it (If-None-Match)."}
    for status, text in _PROBLEMS.items():
        found[str(status)] = {"description": text, "content": problem}
    return found
