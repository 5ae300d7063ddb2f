"""What of a model our operators could stand in for."""
