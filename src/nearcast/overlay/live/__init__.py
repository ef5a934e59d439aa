"""What a peer needs beside the tree to live in a network: frames, introductions, acknowledgements.

Everything here is pure: bytes and the time go in, bytes and deliveries come out. The sockets are
in `nearcast.server.overlay`.

Read next: `codec.py`, `introduction.py`, `acknowledged.py`, `member.py`.
"""
