"""Devices in and out of service, queues, figures of the whole installation, retention."""
