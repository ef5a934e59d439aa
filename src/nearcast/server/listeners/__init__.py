"""Listeners and transports: TCP, TLS, WebSocket."""
