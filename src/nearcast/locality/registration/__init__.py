"""Registration and handover (paper 0): where a moving subscription is held.

Read next: `messages.py`, `gateway.py` (the authority on a client's subscriptions), `holder.py` (the
replica that matches events), `outbox.py` and `retry.py` (nothing is lost), `view.py`.
"""
