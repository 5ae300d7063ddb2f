"""The check of a configuration at its first use, where it was never verified at the shape that it serves."""
