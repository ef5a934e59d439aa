"""Users, passwords and rules."""
