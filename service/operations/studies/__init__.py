"""Studies and their trials, as the API, the charts and a worker need them."""
