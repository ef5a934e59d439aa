"""The papers' experiments: one module per paper, with parameters, sweep and claims.

A point of a sweep is a frozen value; running it is a function of that value alone, so that a
sweep can run as one task per point. Nothing here draws pictures or starts Spark.

Read next: the module of the paper, for example delta_causal.py.
"""
