"""A real HTTP server for tests, on a free port."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[bytes], tuple[int, str]]


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[tuple[str, list[bytes]]]:
    """Answer each request by a function of its body; give the address, and the bodies so far."""
    asked: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def _respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked.append(body)
            status, text = answer(body)
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = _respond  # noqa: N815 - the names that http.server asks for

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/x", asked
        finally:
            server.shutdown()
            thread.join()
