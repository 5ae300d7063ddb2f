"""Tuning jobs: requested, stored, followed while they run, ended."""
