"""Records of what a program calls, and what of it operators could compute."""
