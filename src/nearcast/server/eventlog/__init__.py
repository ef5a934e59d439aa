"""The event log of a running broker: a pipe to a process that writes segments."""
