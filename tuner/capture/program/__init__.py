"""What runs in the captured program's own process, under whatever Python it has: it needs NumPy alone.

Nothing here may import the rest of Tilewright, which that Python need not have.
"""
