"""What runs in the script's own process, under whatever Python has the script's packages: it needs NumPy alone.

Nothing here may import the rest of Tilewright, which that Python need not have.
"""
