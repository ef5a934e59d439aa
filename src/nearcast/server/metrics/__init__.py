"""Metrics: `$SYS` topics, Prometheus text, and measurements of the process."""
