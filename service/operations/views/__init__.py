"""Results seen side by side: problems by device models, and two sides compared."""
