"""The server's connections, and the state that API processes of one address share."""
