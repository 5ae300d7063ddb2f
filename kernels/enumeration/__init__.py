"""The feasible configurations of a search space, found without visiting every point."""
