"""Calls a broker's management address as a browser or a program does."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Caller:
    """Keeps a cookie and a CSRF token, as a browser with the page open does."""

    port: int
    cookie: str = ""
    csrf: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Reply:
        sent = {**self.headers, **(headers or {})}
        if self.cookie:
            sent.setdefault("Cookie", self.cookie)
        if self.csrf and method != "GET":
            sent.setdefault("X-CSRF-Token", self.csrf)
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, found, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Reply:
        return self.ask("POST", path, body, headers)

    def log_in(self, user: str, password: str) -> Caller:
        reply = self.post("/api/session", {"user": user, "password": password})
        assert reply.status == 200, reply.body
        return self.take_login(reply)

    def take_login(self, reply: Reply) -> Caller:
        self.cookie = reply.headers["set-cookie"].partition(";")[0]
        self.csrf = reply.json["csrf"]
        return self
