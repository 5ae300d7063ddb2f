"""Every kernel by name."""
