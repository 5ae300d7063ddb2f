"""The recognition of what our operators could stand in for in a model."""
