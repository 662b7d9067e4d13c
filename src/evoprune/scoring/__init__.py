"""Scoring channels: plan, statistics of one pass over the data, execution, and the definition in NumPy."""
