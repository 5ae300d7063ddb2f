"""Any device behind a child process, which may hang or crash."""
