"""The server's connections, and what several API processes of one address share."""
