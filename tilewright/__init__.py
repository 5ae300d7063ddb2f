"""The import package: `kernels`, `tuner`, `service` and `migrations` are links to the folders beside it.

A bare top-level `kernels` in site-packages would shadow a well-known package of that name, hence this root.
"""

__version__ = "0.1.0"
