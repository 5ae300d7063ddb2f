"""Results exported as documents, and imported from them."""
