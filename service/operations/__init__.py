"""Operations: one function for each thing that the service does, called by API, pages, workers and command line."""
