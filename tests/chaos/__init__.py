"""Random cycles of faults over a running service: `make chaos CYCLES=200 SEED=1`."""
