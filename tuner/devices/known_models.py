"""GPU products that results are imported for where no worker has one: figures by NVIDIA's data sheets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from tilewright.tuner.devices.cuda.model import model_of, slug_of
from tilewright.tuner.devices.device import DeviceModel


@dataclass(frozen=True)
class Product:
    """The figures that differ between GPUs of one compute capability; 0 where unknown."""

    compute_capability: tuple[int, int]
    multiprocessors: int
    memory_gib: float
    clock_mhz: float = 0.0  # boost
    gb_per_s: float = 0.0
    l2_mib: float = 0.0


_OF_CAPABILITY = {
    (7, 0): (2048, 32, 96, 96),
    (7, 2): (2048, 32, 96, 96),
    (7, 5): (1024, 16, 64, 64),
    (8, 0): (2048, 32, 164, 163),
    (8, 6): (1536, 16, 100, 99),
    (8, 7): (1536, 16, 164, 163),
    (8, 9): (1536, 24, 100, 99),
    (9, 0): (2048, 32, 228, 227),
    (10, 0): (2048, 32, 228, 227),
    (10, 3): (2048, 32, 228, 227),
    (11, 0): (1536, 24, 228, 227),
    (12, 0): (1536, 24, 100, 99),
    (12, 1): (1536, 24, 100, 99),
}
"""Threads and blocks of a multiprocessor, KiB of shared memory of it and of a block (CUDA programming guide, "Technical
Specifications per Compute Capability")."""

_PRODUCTS = {
    "Tesla T4": Product((7, 5), 40, 16, 1590, 320, 4),
    "NVIDIA GeForce RTX 2080 Ti": Product((7, 5), 68, 11, 1545, 616, 5.5),
    "NVIDIA TITAN RTX": Product((7, 5), 72, 24, 1770, 672, 6),
    "NVIDIA A100": Product((8, 0), 108, 40, 1410, 1555, 40),
    "NVIDIA A100-SXM4-40GB": Product((8, 0), 108, 40, 1410, 1555, 40),
    "NVIDIA A100-SXM4-80GB": Product((8, 0), 108, 80, 1410, 2039, 40),
    "NVIDIA A100-PCIE-40GB": Product((8, 0), 108, 40, 1410, 1555, 40),
    "NVIDIA A100 80GB PCIe": Product((8, 0), 108, 80, 1410, 1935, 40),
    "NVIDIA A10": Product((8, 6), 72, 24, 1695, 600, 6),
    "NVIDIA A40": Product((8, 6), 84, 48, 1740, 696, 6),
    "NVIDIA RTX A4000": Product((8, 6), 48, 16, 1560, 448, 4),
    "NVIDIA RTX A6000": Product((8, 6), 84, 48, 1800, 768, 6),
    "NVIDIA GeForce RTX 3060": Product((8, 6), 28, 12, 1777, 360, 3),
    "NVIDIA GeForce RTX 3060 Laptop GPU": Product((8, 6), 30, 6, 1703, 336, 3),
    "NVIDIA GeForce RTX 3070": Product((8, 6), 46, 8, 1725, 448, 4),
    "NVIDIA GeForce RTX 3080": Product((8, 6), 68, 10, 1710, 760, 5),
    "NVIDIA GeForce RTX 3090": Product((8, 6), 82, 24, 1695, 936, 6),
    "NVIDIA GeForce RTX 4080": Product((8, 9), 76, 16, 2505, 717, 64),
    "NVIDIA GeForce RTX 4090": Product((8, 9), 128, 24, 2520, 1008, 72),
    "NVIDIA L4": Product((8, 9), 58, 24, 2040, 300, 48),
    "NVIDIA L40S": Product((8, 9), 142, 48, 2520, 864, 96),
    "NVIDIA H100": Product((9, 0), 132, 80, 1980, 3350, 50),
    "NVIDIA H100 80GB HBM3": Product((9, 0), 132, 80, 1980, 3350, 50),
    "NVIDIA H100 PCIe": Product((9, 0), 114, 80, 1755, 2000, 50),
    "NVIDIA H200": Product((9, 0), 132, 141, 1980, 4800, 60),
    "NVIDIA GeForce RTX 5090": Product((12, 0), 170, 32, 2407, 1792, 96),
}
_BY_SLUG = {slug_of(name): name for name in _PRODUCTS}
_MAKES = ("", "nvidia-", "nvidia-geforce-", "tesla-")


def known_model(name: str) -> DeviceModel | None:
    """The product of that name or slug, in whatever case, with or without its make; None for another."""
    models = (_BY_SLUG.get(make + slug_of(name)) for make in _MAKES)
    known = next((model for model in models if model is not None), None)
    return None if known is None else model_of_product(known, _PRODUCTS[known])


def product_of(figures: Mapping[str, str]) -> Product:
    """The product with these figures by name; raises ValueError that says which there are."""
    names = [field.name for field in fields(Product)]
    needed = names[:3]
    if not set(needed) <= set(figures) <= set(names):
        raise ValueError(f"{', '.join(needed)} are required; {', '.join(names[3:])} are optional")
    try:
        major, _, minor = figures["compute_capability"].partition(".")
        rest = {name: float(figures[name]) for name in figures if name in names[2:]}
        product = Product((int(major), int(minor or 0)), int(figures["multiprocessors"]), **rest)
    except ValueError:
        raise ValueError("a figure is not a number") from None
    if product.compute_capability not in _OF_CAPABILITY:
        raise ValueError(f"compute_capability must be one of {', '.join(f'{a}.{b}' for a, b in _OF_CAPABILITY)}")
    if not (0 < product.multiprocessors <= 1 << 20 and all(0 <= value < 1e9 for value in rest.values())):
        raise ValueError("a figure is out of range")
    return product


def model_of_product(name: str, product: Product) -> DeviceModel:
    """The device model of a product, as a worker on such a device would describe it."""
    threads, blocks, shared_kib, block_kib = _OF_CAPABILITY[product.compute_capability]
    attributes = {
        "COMPUTE_CAPABILITY_MAJOR": product.compute_capability[0],
        "COMPUTE_CAPABILITY_MINOR": product.compute_capability[1],
        "MULTIPROCESSOR_COUNT": product.multiprocessors,
        "MAX_THREADS_PER_BLOCK": 1024,
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": block_kib << 10,
        "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": shared_kib << 10,
        "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
        "MAX_THREADS_PER_MULTIPROCESSOR": threads,
        "MAX_BLOCKS_PER_MULTIPROCESSOR": blocks,
        "WARP_SIZE": 32,
        "MAX_GRID_DIM_X": 2**31 - 1,
        "MAX_GRID_DIM_Y": 65535,
        "MAX_GRID_DIM_Z": 65535,
        "L2_CACHE_SIZE": int(product.l2_mib * 2**20),
        "CLOCK_RATE": int(product.clock_mhz * 1e3),
        "MEMORY_CLOCK_RATE": int(product.gb_per_s * 1e6),  # kHz, of a bus of four bits: two transfers a cycle
        "GLOBAL_MEMORY_BUS_WIDTH": 4,
    }
    return model_of(name, attributes, int(product.memory_gib * 2**30), None)
