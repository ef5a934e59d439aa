"""The change feed: clients' publications, copied into a JetStream stream."""
