"""Triton as a second source language: compiled ahead, interpreted on the CPU, and chosen for at run time."""
