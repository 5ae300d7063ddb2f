"""PyCUDA as a capture sees it, on the CPU: the names and the ways to launch of the real one, with memory of NumPy's.

It knows one kernel, `scale(float *y, const float *x, float a, int n)`, whatever its source says.
"""
