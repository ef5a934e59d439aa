"""Content subscriptions: conditions, areas, positions, ranks.

Read next: `spaces.py` (configuration), `nearcast.model.event_decoder` (payload to event),
`subscriptions.py` (the matcher and the sessions behind its keys), `publish.py` (one message of a
space), `select.py` and `top_k.py` (its subscriptions: all that match, or the k best), `deliver.py`,
`fast_path.py` (plain QoS 0 packets), `positions.py` and
`range_entry.py` (clients that move, retained messages that come into range), `match_preview.py`,
`explain.py` and `explain_topic.py`.
"""
