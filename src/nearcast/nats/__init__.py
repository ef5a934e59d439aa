"""What nodes and jobs share about NATS: the connection, and the format of the feed's messages."""
