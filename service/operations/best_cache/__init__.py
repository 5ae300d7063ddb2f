"""Best configurations in the memory of an API process, kept up to date by the database's notifications."""
