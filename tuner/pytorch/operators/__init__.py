"""Operators of `tilewright.torch`, each one declaration: its schema, its problem, what PyTorch computes."""
