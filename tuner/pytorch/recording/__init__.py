"""Records of a program's calls, and which of them our operators could compute."""
