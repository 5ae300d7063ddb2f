"""Signed folders of configurations and compiled code, as an application reads them."""
