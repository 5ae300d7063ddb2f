"""What the service does: each function one use, called by API, worker and command line alike."""
