"""Logins that an HTTP server decides.

`POST url` with a JSON object: `client`, `user`, `password`, `address`, `listener`, `certificate`.
Status 200 accepts: `{"user": "ann", "rules": [{"topic": "fleet/ann/#"}], "expires": 3600}`; only
`user` must be there. Anything else refuses: another status, no answer in time, a body that is not
that.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from nearcast.config import HttpHookSection
from nearcast.server.auth.http_calls import CallAnswer, call
from nearcast.server.auth.logins import LoginAnswer, LoginRefusedError, LoginRequest

_MOST_KEPT = 10_000


class HttpHook:
    """A login plugin that asks an HTTP server and remembers who was accepted, for a while."""

    def __init__(
        self, section: HttpHookSection, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._section = section
        self._now_s = now_s
        self._secret = os.urandom(32)
        self._kept: OrderedDict[bytes, tuple[float, LoginAnswer]] = OrderedDict()
        self._lock = threading.Lock()
        if section.token_file is not None:
            section.token_file.read_text("utf-8")  # one that cannot be read is a mistake of now

    def check(self, request: LoginRequest) -> LoginAnswer | None:
        """Return the server's answer, or one of the last `cache` seconds to the same question."""
        if not _is_text(request.password):  # as text it would be the same as many others
            raise LoginRefusedError("the password is no text in UTF-8, and the hook gets text")
        question = json.dumps(_fields(request)).encode()
        key = hmac.digest(self._secret, question, hashlib.sha256)
        asked_s = self._now_s()
        with self._lock:
            kept_s, answer = self._kept.get(key, (0.0, None))
        if answer is not None and asked_s - kept_s < self._lasts_s(answer):
            return _aged(answer, asked_s - kept_s)
        answer = self._ask(question)
        with self._lock:
            self._kept[key] = (asked_s, answer)
            self._kept.move_to_end(key)
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        return answer

    def _lasts_s(self, answer: LoginAnswer) -> float:
        """Return how long an answer is used again: no longer than the login that it allows."""
        return min(self._section.cache, answer.lasts_s or self._section.cache)

    def _ask(self, question: bytes) -> LoginAnswer:
        section = self._section
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        try:
            if section.token_file is not None:  # read at each call: it may be renewed
                token = section.token_file.read_text("utf-8").strip()
                headers["Authorization"] = f"Bearer {token}"
            assert section.url is not None
            answer = call(
                section.url,
                timeout_s=section.timeout,
                body=question,
                headers=headers,
                authority=section.authority,
            )
        except (OSError, ValueError) as problem:
            raise LoginRefusedError(f"the hook gives no answer ({problem})") from problem
        return _read(answer)


def _aged(answer: LoginAnswer, age_s: float) -> LoginAnswer:
    """Return an answer of some time ago, with what is left of its time."""
    return replace(answer, lasts_s=answer.lasts_s - age_s) if answer.lasts_s else answer


def _fields(request: LoginRequest) -> dict[str, object]:
    password = request.password
    return {
        "client": request.client_id,
        "user": request.user_name,
        "password": None if password is None else password.decode(),
        "address": request.address,
        "listener": request.listener,
        "certificate": [list(pair) for pair in request.certificate],
    }


def _is_text(password: bytes | None) -> bool:
    try:
        return password is None or password.decode() is not None
    except UnicodeDecodeError:
        return False


def _read(answer: CallAnswer) -> LoginAnswer:
    """Return what a server has answered; LoginRefusedError unless it accepts."""
    if answer.status != 200:
        raise LoginRefusedError(f"the hook answers {answer.status}")
    try:
        found = json.loads(answer.body)
        user, rules, lasts_s = found["user"], found.get("rules"), found.get("expires", 0)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise LoginRefusedError("the hook's answer is no object with 'user'") from None
    is_number = isinstance(lasts_s, (int, float)) and not isinstance(lasts_s, bool)
    is_list = rules is None or isinstance(rules, list)
    if not isinstance(user, str) or not is_list or not is_number or not 0 <= lasts_s < 1e9:
        raise LoginRefusedError("the hook's answer has a 'user', 'rules' or 'expires' that is none")
    return LoginAnswer(user, rules, float(lasts_s))
