"""Scratch memory that launches keep from call to call: its limit, where it comes from, and how it is given back."""
