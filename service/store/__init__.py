"""Tables, sessions and the embedded PostgreSQL. Only `operations` and `worker` come here."""
