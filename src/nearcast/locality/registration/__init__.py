"""Registration and handover (paper 0): where a moving subscription is held.

Read next: `node.py` (all parts of one node), `messages.py`, `gateway.py` (the authority on a
client's subscriptions), `holder.py` (the replica that matches events), `outbox.py` and `retry.py`
(nothing is lost), `plan_assignment.py` (which node holds which place).
"""
