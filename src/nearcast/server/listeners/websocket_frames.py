"""Decodes a client's WebSocket frames as strictly as RFC 6455 asks; encodes frames for it.

MQTT is a stream of bytes inside binary frames (MQTT 5, section 6): the decoder passes on each piece
of a payload as it arrives and buffers only headers and control frames, at most 139 bytes.
"""

from __future__ import annotations

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
NORMAL, PROTOCOL_ERROR, UNSUPPORTED = 1000, 1002, 1003

_LONG = 800  # bytes above which NumPy is faster than long integers
_SINGLE = 0x80 | BINARY
_CONTROL_LARGEST = 125


class FrameDecoder:
    """Decodes frames from bytes that arrive in any portions.

    After each `feed`: `pong` is the payload of the last unanswered ping (earlier ones need no
    answer, RFC 6455, 5.5.3), `closing` the code with which the connection must close, or 0, and
    `problem` the reason. Once it must close, further bytes are ignored.

    Complexity: O(bytes), however they are split.
    """

    __slots__ = (
        "_control",
        "_head",
        "_in_message",
        "_left",
        "_mask",
        "_opcode",
        "closing",
        "pong",
        "problem",
    )

    def __init__(self) -> None:
        self.pong: bytes | None = None
        self.closing = 0
        self.problem = ""
        self._head = b""  # of a frame whose header is not complete
        self._left = 0  # bytes of the payload still to come
        self._mask = b""  # rotated: its first byte is for the next byte of the payload
        self._opcode = BINARY
        self._control = b""  # the payload of a control frame so far
        self._in_message = False  # a message continues in continuation frames

    def feed(self, data: bytes) -> list[bytes]:
        """Return the pieces of the MQTT stream in these bytes."""
        stream: list[bytes] = []
        if self._head:
            data, self._head = self._head + data, b""
        position, end = 0, len(data)
        if self._left:
            position = self._go_on(data, stream)
        while position < end and not self.closing:
            start = position + 6
            if end >= start and data[position] == _SINGLE and not self._in_message:
                size = data[position + 1] - 0x80
                if 0 <= size < 126 and start + size <= end:  # common case: a short message
                    position = start + size
                    stream.append(unmask(data[start:position], data[start - 4 : start]))
                    continue
            position = self._begin(data, position, stream)
        return stream

    def _begin(self, data: bytes, position: int, stream: list[bytes]) -> int:
        """Decode a header and the payload that has arrived; return the next frame's offset."""
        end = len(data)
        if end - position < 2:
            self._head = data[position:]
            return end
        first, second = data[position], data[position + 1]
        width = {126: 2, 127: 8}.get(second & 0x7F, 0)
        self._check_start(first, second)
        start = position + 2 + width + 4
        if self.closing:
            return end
        if end < start:
            self._head = data[position:]
            return end
        size = second & 0x7F
        if width:
            size = int.from_bytes(data[position + 2 : start - 4], "big")
            if size < (126 if width == 2 else 1 << 16) or size >> 63:
                self._fail(f"a length of {size} in {width} bytes")
                return end
        self._opcode, self._left = first & 0x0F, size
        self._mask, self._control = data[start - 4 : start], b""
        if self._opcode < CLOSE:
            self._in_message = first < 0x80
        return self._go_on(data, stream, start)

    def _check_start(self, first: int, second: int) -> None:
        """Reject a header that no client may send (RFC 6455, 5.1 to 5.5)."""
        opcode, is_final = first & 0x0F, first >= 0x80
        if second < 0x80:
            self._fail("a frame that is not masked")
        elif first & 0x70:
            self._fail("reserved bits without an extension")
        elif opcode in (CLOSE, PING, PONG):
            if not is_final or second & 0x7F > _CONTROL_LARGEST:
                self._fail("a control frame in fragments or of more than 125 bytes")
        elif opcode == TEXT:
            self._fail("a text frame", UNSUPPORTED)  # [MQTT-6.0.0-1]
        elif opcode not in (CONTINUATION, BINARY):
            self._fail(f"a frame of the reserved type {opcode}")
        elif (opcode == CONTINUATION) != self._in_message:
            what = "a message inside another" if self._in_message else "a stray continuation"
            self._fail(what)

    def _go_on(self, data: bytes, stream: list[bytes], start: int = 0) -> int:
        """Decode payload that has arrived; return the next frame's offset."""
        stop = min(len(data), start + self._left)
        payload = unmask(data[start:stop], self._mask)
        taken = stop - start
        self._left -= taken
        turn = taken & 3
        if turn:
            self._mask = self._mask[turn:] + self._mask[:turn]
        if self._opcode < CLOSE:
            if payload:
                stream.append(payload)
            return stop
        self._control += payload
        if not self._left:
            self._take_control()
        return stop

    def _take_control(self) -> None:
        if self._opcode == PING:
            self.pong = self._control
        elif self._opcode == CLOSE:
            self._take_close(self._control)

    def _take_close(self, payload: bytes) -> None:
        """Set `closing` to the client's code, or reject the frame (RFC 6455, 5.5.1 and 7.4)."""
        code = int.from_bytes(payload[:2], "big") if payload else NORMAL
        is_known = 1000 <= code <= 1014 and code not in (1004, 1005, 1006)
        if len(payload) == 1 or not (is_known or 3000 <= code <= 4999):
            self._fail(f"a close frame of {len(payload)} bytes with code {code}")
            return
        try:
            payload[2:].decode()
        except UnicodeDecodeError:
            self._fail("a close frame whose reason is no UTF-8")
            return
        self.closing = code

    def _fail(self, problem: str, code: int = PROTOCOL_ERROR) -> None:
        self.closing, self.problem = code, problem


def unmask(payload: bytes, mask: bytes) -> bytes:
    """Return the unmasked payload. O(n), in one pass.

    >>> unmask(unmask(b"hello", b"abcd"), b"abcd")
    b'hello'
    """
    size = len(payload)
    if size > _LONG:
        import numpy as np  # loaded by the first long frame: the start is faster

        words = np.frombuffer(payload + bytes(-size % 4), np.uint32)
        return (words ^ np.frombuffer(mask, np.uint32)).tobytes()[:size]
    pad = mask * (size // 4 + 1)
    mixed = int.from_bytes(payload, "little") ^ int.from_bytes(pad[:size], "little")
    return mixed.to_bytes(size, "little")


def encode_frame(opcode: int, payload: bytes) -> bytes:
    """Return one unmasked, final frame."""
    size = len(payload)
    first = bytes((0x80 | opcode,))
    if size < 126:
        return first + bytes((size,)) + payload
    if size < 65_536:
        return first + b"\x7e" + size.to_bytes(2, "big") + payload
    return first + b"\x7f" + size.to_bytes(8, "big") + payload
