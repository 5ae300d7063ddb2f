"""Compiling on other hosts: what a job offers from its pool, and the compile worker that takes it."""
