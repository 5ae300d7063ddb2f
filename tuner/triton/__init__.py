"""Triton as a second source language: its functions as modules, interpreted on the CPU."""
