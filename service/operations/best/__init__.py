"""The best configuration of a problem: found, answered, published, withdrawn, and predicted where none was measured."""
