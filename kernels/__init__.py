"""CUDA sources, their declarations and their float64 references. Imports the standard library and NumPy only."""
