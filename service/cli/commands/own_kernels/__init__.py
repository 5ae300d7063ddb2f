"""`kernels check`, `new` and `adopt`: kernels of your own."""
