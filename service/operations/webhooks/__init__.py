"""Webhooks: where messages about jobs go, and their delivery."""
