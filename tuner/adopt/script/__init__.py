"""The code in the script's own process, under the Python with the script's packages: it needs NumPy alone.

Nothing here may import the rest of Tilewright, which that Python need not have.
"""
