"""A few processes that predict and fit for an API process, so that it can answer others meanwhile."""
