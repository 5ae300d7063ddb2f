"""The layers that every request passes before it is routed."""
