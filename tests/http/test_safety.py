"""What keeps strangers out: Host, Origin, cookies, CSRF, throttle, limits; and hostile texts."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.http.conftest import PASSWORD, ManagedBroker, Mover
from tests.support.http_caller import Caller
from tests.support.waiting import wait_for

from nearcast.server.http.site import content_policy

pytestmark = pytest.mark.server

PAIR = {"certificate": "pem", "key": "key"}
HOSTILE = "<script>alert(1)</script>\"'&\u2028\u202e</b>"


@pytest.mark.parametrize("path", ["/", "/api/session", "/metrics", "/assets/x.js"])
def test_a_name_that_is_not_ours_is_misdirected(site: ManagedBroker, path: str):
    """A site whose name is made to point to this machine would otherwise be of the same origin."""
    for host in ("evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil", ""):
        assert site.nobody().get(path, Host=host).status == 421, host
    for host in ("localhost", "LOCALHOST:99", f"127.0.0.1:{site.port}", "[::1]:80", "10.1.2.3"):
        assert site.nobody().get(path, Host=host).status != 421, host


def test_configured_names_are_ours(start_site: Callable[..., ManagedBroker]):
    site = start_site({"hosts": ["broker.example"]})
    assert site.nobody().get("/api/session", Host="broker.example:8443").status == 200
    assert site.nobody().get("/api/session", Host="other.example").status == 421


def test_what_a_page_of_another_site_sends_is_refused(site: ManagedBroker):
    ann = site.operator()
    body = {"topic": "safety/1", "payload": "x"}
    for origin in ("https://evil.example", "null", "http://localhost:1", "http://[", ""):
        assert ann.post("/api/publish", body, Origin=origin).status == 403, origin
    own = f"http://127.0.0.1:{site.port}"
    assert ann.post("/api/publish", body, Origin=own).status == 200
    log_in = {"user": "ann", "password": PASSWORD}
    assert site.nobody().post("/api/session", log_in, Origin="https://evil.example").status == 403


def test_a_websocket_of_another_site_or_without_a_login_is_refused(site: ManagedBroker):
    ann = site.operator()
    for headers, status in (
        ({"Cookie": ann.cookie, "Origin": "https://evil.example"}, 403),
        ({"Cookie": ann.cookie, "Host": "evil.example"}, 421),
        ({}, 401),
        ({"Cookie": "nearcast-1=x"}, 401),
        ({"Cookie": ann.cookie, "Origin": f"http://127.0.0.1:{site.port}"}, 101),
    ):
        upgrade = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Protocol": "mqtt",
        }
        connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=30)
        connection.request("GET", "/mqtt", headers=upgrade | headers)
        assert connection.getresponse().status == status, headers
        connection.close()


def test_a_change_needs_the_csrf_token_with_a_cookie_and_not_with_a_token(site: ManagedBroker):
    ann, body = site.operator(), {"topic": "safety/1"}
    token, ann.csrf = ann.csrf, ""
    assert ann.post("/api/publish", body).status == 403
    assert ann.ask("DELETE", "/api/session").status == 403
    for wrong in ("x", token[:-1], token + "x", site.operator().csrf):
        assert ann.post("/api/publish", body, **{"X-CSRF-Token": wrong}).status == 403
    assert ann.post("/api/publish", body, **{"X-CSRF-Token": token}).status == 200
    assert site.program().post("/api/publish", body).status == 200


def test_only_json_is_taken_so_that_no_form_of_another_site_fits(site: ManagedBroker):
    ann, raw = site.operator(), json.dumps({"topic": "safety/1"}).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert ann.ask("POST", "/api/publish", raw, {"Content-Type": kind}).status == 415


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(site: ManagedBroker):
    reply = site.nobody().post("/api/session", {"user": "ann", "password": PASSWORD})
    parts = [one.strip() for one in reply.headers["set-cookie"].split(";")]
    assert parts[0].startswith(f"nearcast-{site.port}=")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(parts)
    assert reply.headers["cache-control"] == "private, no-cache"


def test_every_answer_forbids_inline_scripts_framing_and_other_hosts(site: ManagedBroker):
    for path in ("/", "/api/session", "/api/nothing", "/metrics", "/assets/none.js"):
        headers = site.nobody().get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        policy = headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "connect-src 'self';" in policy
        assert "access-control-allow-origin" not in headers


def test_map_tiles_open_the_policy_for_their_server_alone():
    policy = content_policy("https://tiles.example:444/{z}/{x}/{y}.png?key=1")
    assert "img-src 'self' data: blob: https://tiles.example:444;" in policy
    assert "script-src 'self';" in policy


def test_an_address_that_guesses_passwords_has_to_wait(start_site: Callable[..., ManagedBroker]):
    site = start_site()
    anyone = site.nobody()
    wrong = [{"user": "ann", "password": f"guess {n}"} for n in range(6)]
    assert [anyone.post("/api/session", one).status for one in wrong[:5]] == [401] * 5
    late = anyone.post("/api/session", wrong[5])
    assert late.status == 429
    assert 0 < int(late.headers["retry-after"]) <= 60
    right = {"user": "ann", "password": PASSWORD}
    assert anyone.post("/api/session", right).status == 429
    assert site.program().get("/api/clients").status == 200
    said = site.program().get("/api/log").body.decode()
    assert "login refused: operator 'ann' from 127.0.0.1" in said
    assert "guess" not in said
    assert PASSWORD not in said


def test_unknown_names_are_refused_like_wrong_passwords(start_site: Callable[..., ManagedBroker]):
    anyone = start_site().nobody()
    replies = [
        anyone.post("/api/session", {"user": user, "password": "x"})
        for user in ("ann", "nobody", "bot")
    ]
    assert {(one.status, one.body) for one in replies} == {(401, replies[0].body)}


def test_hostile_names_come_out_as_json_texts(site: ManagedBroker, mover: Callable[..., Mover]):
    one = mover(f"page {HOSTILE}", (1.0, 2.0))
    one.subscribe(f"safety/{HOSTILE}/#")
    one.client.publish(f"safety/retained/{HOSTILE}", HOSTILE, qos=1, retain=True)
    ann, name = site.operator(), quote(f"page {HOSTILE}", safe="")
    topic = quote(f"safety/retained/{HOSTILE}", safe="")
    wait_for(lambda: ann.get(f"/api/retained/message?topic={topic}").status == 200)
    assert ann.get(f"/api/retained/message?topic={topic}").json["text"] == HOSTILE
    for path in (
        f"/api/clients/{name}",
        "/api/clients",
        "/api/topics",
        "/api/retained?filter=safety/%23",
        "/api/positions",
        "/api/log",
        f"/api/clients/{quote('<img src=x>', safe='')}",
    ):
        reply = ann.get(path)
        assert reply.headers["content-type"] in ("application/json", "application/problem+json")
        assert reply.json
    assert ann.get(f"/api/clients/{name}").json["client"]["id"] == f"page {HOSTILE}"


def test_what_operators_do_is_in_the_log(site: ManagedBroker, mover: Callable[..., Mover]):
    mover("unwanted")
    bot = site.program()
    bot.post("/api/publish", {"topic": "safety/log", "payload": "x", "retain": True})
    bot.ask("DELETE", "/api/retained/message?topic=safety/log")
    bot.post("/api/clients/unwanted/disconnect")
    lines = bot.get("/api/log?limit=50").json["items"]
    events = [one["event"] for one in lines if one["logger"] == "nearcast.operators"]
    expected = ["operator_published", "operator_deleted_retained", "operator_disconnected_client"]
    assert [one for one in events if one in expected][-3:] == expected
    assert any("'bot' disconnected client 'unwanted'" in one["text"] for one in lines)


def test_with_a_certificate_everything_is_encrypted_and_cookies_stay_so(
    start_site: Callable[..., ManagedBroker], certificates: Path
):
    files = {name: str(certificates / f"server.{end}") for name, end in PAIR.items()}
    site = start_site(files)
    port = site.broker.ports["https"]
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=30)
    body = json.dumps({"user": "ann", "password": PASSWORD})
    headers = {"Content-Type": "application/json", "Origin": f"https://localhost:{port}"}
    connection.request("POST", "/api/session", body, headers)
    answer = connection.getresponse()
    assert answer.status == 200
    cookie = answer.getheader("Set-Cookie") or ""
    assert "; Secure" in cookie
    connection.close()
    page = Mover(port, "page-encrypted", transport="websockets")
    page.client.tls_set_context(context)
    page.client.ws_set_options(path="/mqtt", headers={"Cookie": cookie.partition(";")[0]})
    page._host = "localhost"
    page.connect()
    assert not page.subscribe("$nearcast/live/log/+").is_failure
    page.end()


# --- limits -----------------------------------------------------------------------------------


def raw(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as one:
        one.sendall(data)
        found = b""
        try:
            while b"\r\n\r\n" not in found and (piece := one.recv(65_536)):
                found += piece
        except ConnectionError:
            pass
        return found


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70_000, b"431"),
        (b"POST /api/session HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", b"400"),
        (b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
        (b"BREW /api/clients HTTP/1.1\r\nHost: localhost\r\n\r\n", b"405"),
        (b"GET http://evil/ HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"421"),
    ],
)
def test_bad_requests_are_answered(site: ManagedBroker, data: bytes, status: bytes):
    assert raw(site.port, data).split(b" ")[1] == status
    assert site.nobody().get("/healthz").status == 200


def test_a_body_beyond_the_limit_is_refused_before_it_is_whole(site: ManagedBroker):
    head = b"POST /api/session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n"
    assert b" 413 " in raw(site.port, head + b"x" * 1_100_000)


@pytest.mark.parametrize(
    "name",
    [
        "../site.py",
        "..%2Fsite.py",
        "../page/index.html",
        "..%2Fpage%2Findex.html",
        ".%2Findex.html/../index.html",
        "%2e%2e/site.py",
        "/etc/passwd",
        "%2Fetc%2Fpasswd",
        "a/../../site.py",
        "x\\..\\site.py",
        ".hidden.js",
        "%00.js",
        "page",
        "",
    ],
)
def test_no_file_outside_of_the_page_is_served(site: ManagedBroker, name: str):
    assert site.nobody().get(f"/assets/{name}").status == 404


def test_several_requests_sent_at_once_are_answered_in_order(site: ManagedBroker):
    one = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /api/session HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", site.port), timeout=30) as wire:
        wire.sendall(one * 20 + last)
        found = b""
        while piece := wire.recv(65_536):
            found += piece
    assert found.count(b"HTTP/1.1 200") == 21
    assert found.rstrip().endswith(b"}")


def test_a_crowd_of_connections_leaves_room_for_clients(
    site: ManagedBroker, mover: Callable[..., Mover]
):
    crowd = [socket.create_connection(("127.0.0.1", site.port)) for _ in range(300)]
    mover("still welcome")
    for one in crowd:
        one.close()
    wait_for(lambda: site.nobody().get("/healthz").status == 200)


def test_the_token_of_nobody_is_refused(site: ManagedBroker):
    stranger = Caller(site.port, headers={"Authorization": "Bearer 0123456789"})
    assert stranger.get("/api/clients").status == 401
    assert stranger.get("/api/clients").status == 401
    bare = Caller(site.port, headers={"Authorization": "Bearer "})
    assert bare.get("/api/clients").status == 401
