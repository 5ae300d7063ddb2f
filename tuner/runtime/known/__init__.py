"""The sources of known configurations: answers on disk, a service, shipped records."""
