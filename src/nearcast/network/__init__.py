"""The network of nodes."""
