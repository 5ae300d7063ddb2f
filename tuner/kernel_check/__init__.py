"""The check of a user's own kernel, without a GPU."""
