"""Where configurations are known from: the answers on disk, a service, shipped records."""
