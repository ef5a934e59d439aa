"""The demonstration: what the product does, then a small city before and after learning.

- `opening.py`: a message for the clients that are near, an order for the three nearest couriers;
- `city.py`: the people, how they move, the events; from a seed, without input or output;
- `inhabitants.py`: the same people as MQTT clients over real connections;
- `nodes.py`: the brokers, as processes; `needs.py`: what learning needs beside them;
- `spark_process.py`: the process in which `nearcast pipeline run` and `audit` run;
- `quadrants.py`: the plan that the learned one is compared with;
- `telling.py`: the story on the page of the first node;
- `story.py`: what happens in which order; `page.py`: the results; `plan_map.py`: the map.

It uses what users use: `nearcast serve`, `pipeline run`, plans and policies as files. It does not
reach into a node: all figures come from clients, the list of nodes, and the audit of the log.

Read next: `story.py`.
"""
