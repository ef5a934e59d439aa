"""The demonstration: what the product does, then a small city before and after it has learned.

- `opening.py`: a message that reaches who is near, an order for the three nearest couriers;
- `city.py`: who lives there, how they move, what happens; from a seed, without input or output;
- `inhabitants.py`: the same people as MQTT clients over real connections;
- `nodes.py`: the brokers, as processes; `needs.py`: what learning needs beside them;
- `quadrants.py`: the plan that the learned one is compared with;
- `story.py`: what happens in which order; `page.py`: what it came to.

It uses what users use: `nearcast serve`, `pipeline run`, plans and policies as files. It will not
reach into a node: all figures come from clients, the list of nodes, and the audit of the log.

Read next: `story.py`.
"""
