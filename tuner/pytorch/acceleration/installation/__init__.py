"""Stand-ins for modules and functions while a model is accelerated."""
