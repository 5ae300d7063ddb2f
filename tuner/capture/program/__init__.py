"""The code in the captured program's own process, under that program's Python: it needs NumPy alone.

Nothing here may import the rest of Tilewright, which that Python need not have.
"""
