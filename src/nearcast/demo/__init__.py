"""The demonstration: a small city on a network of nodes, before and after it has learned.

- `city.py`: who lives there, how they move, what happens; from a seed, without input or output;
- `inhabitants.py`: the same people as MQTT clients over real connections;
- `nodes.py`: the brokers, as processes; `story.py`: what happens in which order;
- `page.py`: what it came to, as one HTML page.

It uses what users use: `nearcast serve`, `pipeline run`, plans and policies as files. It will not
reach into a node: all figures come from clients, the list of nodes, and the audit of the log.

Read next: `story.py`.
"""
