"""Access keys, browser sessions and the record of changes."""
