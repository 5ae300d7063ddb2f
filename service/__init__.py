"""The service: database, job engine, REST API, first pages, command line."""
