"""Devices in and out of service, queues, figures of the installation, readiness, retention."""
