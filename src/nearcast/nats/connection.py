"""A node's connection to NATS: opened once, and given up when it breaks.

It does not reconnect: its user opens a new one, and so restarts membership and watches. Every
failure becomes an `EnvironmentProblem` that says what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import ssl
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.errors import Error as NatsError
from nats.js.errors import (
    BucketNotFoundError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    NoStreamResponseError,
    ServiceUnavailableError,
)

from nearcast.config import NetworkSection
from nearcast.model.errors import EnvironmentProblem

log = logging.getLogger("nearcast.network")

STORE_TIMEOUT_S = 2.0  # for a node, which tries again
COMMAND_TIMEOUT_S = 10.0  # for a command, which does not retry: the machine may be busy
_PING_S = 1
_DELAY_S = 0.05
_NO_ROOM = {10_023, 10_028, 10_047}  # codes of NATS: resources, memory, storage
_PASSWORD = re.compile(r"//[^@/]*@")


class NatsConnection(Client):
    """A NATS client that signals its loss and keeps the server's last error."""

    def __init__(self, *, must_encrypt: bool = False, timeout_s: float = STORE_TIMEOUT_S) -> None:
        super().__init__()
        self.timeout_s = timeout_s  # of one request to the key-value store
        self.lost = asyncio.Event()  # set once the connection is closed
        self.complaint = ""  # the server's last error
        self._must_encrypt = must_encrypt
        self._told: set[str] = set()
        self._direct: dict[int, Callable[[str, bytes], None]] = {}  # handlers by subscription id

    def _connect_command(self) -> bytes:
        """Return CONNECT; where TLS is required, send no password to a server without it."""
        if self._must_encrypt and not self._server_info.get("tls_required"):
            raise NatsError("the server does not encrypt its connections")
        self._tell_stream_that_it_is_encrypted()
        command: bytes = super()._connect_command()
        return command

    def _tell_stream_that_it_is_encrypted(self) -> None:
        """Mark the stream as encrypted, which nats-py omits when it starts TLS.

        Otherwise the stream tries to stay half open at the end of each connection. TLS cannot do
        that, and asyncio logs a complaint.
        """
        writer = self._transport._io_writer if isinstance(self._transport, TcpTransport) else None
        if writer is None or writer.get_extra_info("sslcontext") is None:
            return
        protocol = writer.transport.get_protocol()
        if isinstance(protocol, asyncio.StreamReaderProtocol):
            protocol._over_ssl = True  # type: ignore[attr-defined]

    async def subscribe_directly(
        self, subject: str, take: Callable[[str, bytes], None]
    ) -> Subscription:
        """Call `take` for each message of a subject as it is read, without a queue or a task."""
        subscription = await self.subscribe(subject, cb=_ignore)
        self._direct[subscription._id] = take
        return subscription

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        take = self._direct.get(sid)
        if take is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        else:
            take(subject.decode(), data)

    @property
    def local_host(self) -> str:
        """The address of this machine on the route to the server."""
        assert isinstance(self._transport, TcpTransport)
        assert self._transport._io_writer is not None
        return str(self._transport._io_writer.get_extra_info("sockname")[0])

    def publish_directly(self, subject: str, data: bytes) -> bool:
        """Write a publication at once; return False, with no effect, if output is pending."""
        transport = self._transport
        if self._pending or not isinstance(transport, TcpTransport) or not self.is_connected:
            return False
        assert transport._io_writer is not None
        stream = transport._io_writer.transport
        if stream.is_closing() or stream.get_write_buffer_size():
            return False
        stream.write(b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(data), data))
        return True

    async def note_lost(self) -> None:
        """Signal that the connection is closed."""
        self.lost.set()

    async def note_complaint(self, problem: Exception) -> None:
        """Keep the server's error for a later message; log denied permissions at once."""
        self.complaint = str(problem) or type(problem).__name__
        if "permissions" in self.complaint.lower() and self.complaint not in self._told:
            self._told.add(self.complaint)
            log.warning("NATS does not allow this node all that it needs: %s", self.complaint)


async def _ignore(_message: Msg) -> None:
    """Ignore the message: see `subscribe_directly`."""


def public_address(address: str) -> str:
    """Return an address without its password.

    >>> public_address("nats://node:secret@10.0.0.1:4222")
    'nats://10.0.0.1:4222'
    """
    return _PASSWORD.sub("//", address)


async def connect(
    section: NetworkSection, label: str, *, timeout_s: float = STORE_TIMEOUT_S
) -> NatsConnection:
    """Return a connection to the first server that accepts us; if none does, raise the reason.

    `timeout_s` is the limit for one server to accept us, and later for one answer of the key-value
    store.
    """
    if section.credentials is not None:
        _check_credentials(section.credentials)
    context = tls_context(section) if section.is_encrypted else None
    problems = []
    for address in section.join:
        try:
            return await _connect_one(section, address, label, context, timeout_s)
        except EnvironmentProblem as problem:
            problems.append(problem)
    raise problems[0]


async def _connect_one(
    section: NetworkSection,
    address: str,
    label: str,
    context: ssl.SSLContext | None,
    timeout_s: float,
) -> NatsConnection:
    client = NatsConnection(must_encrypt=context is not None, timeout_s=timeout_s)
    with _explained(public_address(address), client):
        try:
            async with asyncio.timeout(timeout_s + 1):
                await client.connect(
                    servers=[address],
                    name=label,
                    error_cb=client.note_complaint,
                    closed_cb=client.note_lost,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=_DELAY_S,  # type: ignore[arg-type]
                    connect_timeout=timeout_s,  # type: ignore[arg-type]
                    ping_interval=_PING_S,
                    skip_subject_validation=True,
                    **_introduction(section, context, address),
                )
        except BaseException:
            await close(client)
            raise
    return client


def _introduction(
    section: NetworkSection, context: ssl.SSLContext | None, address: str
) -> dict[str, Any]:
    given = {
        "user": section.user,
        "password": section.password,
        "token": section.token,
        "user_credentials": None if section.credentials is None else str(section.credentials),
        "tls": context,
        "tls_hostname": None if context is None else urlsplit(address).hostname,
    }
    return {name: value for name, value in given.items() if value is not None}


async def close(client: NatsConnection) -> None:
    """Close a connection in any state."""
    with contextlib.suppress(NatsError, OSError, AssertionError, AttributeError):
        async with asyncio.timeout(1):
            await client.close()


def _check_credentials(path: Path) -> None:
    """Raise what is wrong with a credentials file: a server that needs none would not notice."""
    expected = "a file as `nsc` writes it, with a JWT and a seed"
    try:
        text = path.read_text(errors="replace")
    except OSError as problem:
        raise EnvironmentProblem(
            str(problem.strerror), where=f"network.credentials, {path}", expected=expected
        ) from None
    if not all(f"BEGIN {one}-----" in text for one in ("NATS USER JWT", "USER NKEY SEED")):
        raise EnvironmentProblem(
            "no JWT or no seed", where=f"network.credentials, {path}", expected=expected
        )


def tls_context(section: NetworkSection) -> ssl.SSLContext:
    """Return the TLS context of a connection; an error names the file that is wrong."""
    with _reading("authority", section.authority):
        authority = None if section.authority is None else str(section.authority)
        context = ssl.create_default_context(cafile=authority)
    if section.certificate is not None:
        for name, path in (("certificate", section.certificate), ("key", section.key)):
            with _reading(name, path):
                _ = b"" if path is None else path.read_bytes()
        with _reading("certificate", section.certificate):
            context.load_cert_chain(section.certificate, section.key)
    return context


@contextlib.contextmanager
def _reading(name: str, path: Path | None) -> Iterator[None]:
    """Translate errors into an EnvironmentProblem that names the file."""
    try:
        yield
    except OSError as problem:  # an ssl.SSLError is one
        raise EnvironmentProblem(
            f"a certificate or key that cannot be read ({problem.strerror or problem})",
            where=f"network.{name}" + ("" if path is None else f", {path}"),
            expected="a PEM file",
        ) from None


@contextlib.contextmanager
def _explained(address: str, client: NatsConnection) -> Iterator[None]:
    """Translate connection errors into an EnvironmentProblem with advice."""
    found, todo = "", ""
    try:
        yield
    except ssl.SSLError as problem:
        found, todo = f"no encrypted connection ({problem.reason or problem})", "Check `authority`."
    except ModuleNotFoundError:
        found = "a credentials file needs a package that is not installed"
        todo = "Install it: pip install nkeys"
    except (NatsError, OSError) as problem:
        said = f"{problem} {client.complaint}"
        if "authorization" in said.lower() or "authentication" in said.lower():
            found = "NATS does not accept the user, password, token or credentials"
            todo = "Check [network] in the configuration."
        elif "SSL" in said or "certificate" in said:
            found, todo = f"no encrypted connection ({client.complaint})", "Check `authority`."
        elif "encrypt" in said:
            found = str(problem)
            todo = "Use nats:// without `authority`, or let the server encrypt."
        else:
            found = f"no connection ({client.complaint or problem or 'no answer'})"
            todo = "Is nats-server running there?"
    if found:
        raise EnvironmentProblem(found, where=address, todo=todo)


@contextlib.contextmanager
def store_answers(client: NatsConnection, what: str = "the key-value store") -> Iterator[None]:
    """Translate errors of JetStream into an EnvironmentProblem with advice."""
    client.complaint = ""
    found, todo = "", ""
    try:
        yield
    except (KeyNotFoundError, BucketNotFoundError, KeyWrongLastSequenceError):
        raise  # a regular answer
    except (ServiceUnavailableError, NoStreamResponseError) as problem:
        if getattr(problem, "err_code", None):
            found = f"{what} is full ({problem.description})"
        else:
            found = "this NATS has no JetStream, which keeps the list of nodes"
            todo = "Start it with: nats-server -js"
    except TimeoutError:
        found = f"{what} does not answer"
        if "permissions" in client.complaint.lower():
            found = f"this node may not write to {what} ({client.complaint})"
    except NatsError as problem:
        is_full = getattr(problem, "err_code", None) in _NO_ROOM
        reason = getattr(problem, "description", "") or problem
        found = f"{what} {'is full' if is_full else 'refused'} ({reason})"
    if found:
        raise EnvironmentProblem(found, where="NATS", todo=todo)


async def first_to_end(*work: Coroutine[Any, Any, Any]) -> None:
    """Run all until one ends, cancel the others, and raise the exception of the one that ended."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
