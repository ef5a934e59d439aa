"""Plain TCP connections, read and written many at a time. Read next: `transport.py`."""
