"""The management address: the page in the browser, the HTTP API, `/metrics`, `/healthz`, `/readyz`.

    listener ─► protocol (h11) ─► gate (Host, Origin, who, CSRF) ─► endpoint ─► answer (JSON)
                   └─ /mqtt ─► page_socket ─► the broker, as any WebSocket client

- `endpoint.py` is how an endpoint is declared: method, path, role, types of what is asked and
  answered. Routing, checks and the OpenAPI document (`openapi.py`) come from the declaration;
  `endpoints/` has them all.
- `operators.py` is the file of those who may log in, `logins.py` who has, `access.py` what the
  page's MQTT client may do.
- `live.py` publishes what moves on the map, while somebody looks.

Does not: decide anything about MQTT, or hold state of the broker. It asks the broker through its
interface (`nearcast/broker/interface.py`, `nearcast/broker/inspection.py`).
"""
