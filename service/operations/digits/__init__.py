"""Recognising a drawn digit, in the API's process or on a worker's device."""
