"""The pages, a module a subject."""
