"""Bundles: what an application needs at run time for one device model."""
