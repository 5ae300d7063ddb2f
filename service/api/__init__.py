"""The REST API: routes, schemas, problem documents."""
