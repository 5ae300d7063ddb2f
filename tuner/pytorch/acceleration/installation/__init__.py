"""What stands in for modules and functions while a model is accelerated."""
