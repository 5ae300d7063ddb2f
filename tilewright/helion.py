"""For Helion: `HELION_AUTOTUNE_CACHE=RemoteAutotuneCache HELION_REMOTE_CACHE_BACKEND=tilewright.helion.RemoteCache`."""

from tilewright.tuner.autotune.helion import RemoteCache

__all__ = ["RemoteCache"]
