"""NVIDIA's libraries as baselines."""
