"""Paper 0: brokers assigned to places by how people move. Start with `experiment.py`."""
