"""Data, training and tasks: what a pruning function is judged by."""
