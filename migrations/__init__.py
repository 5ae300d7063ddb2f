"""Schema revisions; applied by service.store.schema."""
