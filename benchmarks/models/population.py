"""The architectures that twelve are drawn from: what the installed transformers builds with four layers.

    python benchmarks/models/population.py

writes population.json: every configuration class that `AutoModel.from_config` builds with four layers and at most
1.2 G parameters, with the version of transformers. Nothing has memory: models are made on PyTorch's meta device.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import warnings
from pathlib import Path
from typing import Any

import torch

from tilewright.tuner.pytorch.acceleration.judgement.pace import within

FILE = Path(__file__).with_name("population.json")
LAYERS, MOST_PARAMETERS, LIMIT_S = 4, 1_200_000_000, 90.0
SEED_TEXT = "38fc7d8"
COUNT = 12

LAYER_NAMES = (
    *("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers"),
    *("num_encoder_layers", "num_decoder_layers"),
)
"""What configurations call the number of their layers; those of stages, such as `depths`, stay as they are."""


def four_layers(kind: str) -> Any:
    """The configuration of that type, with four layers in each of its parts."""
    from transformers import CONFIG_MAPPING  # noqa: PLC0415 - only the list needs it

    config = CONFIG_MAPPING[kind]()
    for part in (config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", ()))):
        _shorten(part)
    return config


def _shorten(config: Any) -> None:
    for name in LAYER_NAMES:
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, min(LAYERS, getattr(config, name)))
    if isinstance(getattr(config, "layer_types", None), list):
        config.layer_types = config.layer_types[:LAYERS]


def drawn(population: list[str]) -> list[str]:
    """The twelve, by a seed that was fixed before."""
    seed = int(hashlib.sha256(SEED_TEXT.encode()).hexdigest()[:8], 16)
    return random.Random(seed).sample(sorted(population), COUNT)


def main() -> None:
    """Writes the list."""
    import transformers  # noqa: PLC0415 - as above

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    population = {}
    for kind in sorted(set(transformers.MODEL_MAPPING._model_mapping)):  # noqa: SLF001 - no public name has the types
        try:
            with within(LIMIT_S), torch.device("meta"):
                model = transformers.AutoModel.from_config(four_layers(kind))
        except Exception as error:  # noqa: BLE001 - a configuration that cannot be built is left out of the list
            print(f"{kind}: {type(error).__name__}: {str(error).splitlines()[:1]}", flush=True)
            continue
        count = sum(one.numel() for one in model.parameters())
        print(kind, count, flush=True)
        if count <= MOST_PARAMETERS:
            population[kind] = count
    document = {"transformers": transformers.__version__, "layers": LAYERS, "parameters": population}
    document |= {"seed": SEED_TEXT, "drawn": drawn(list(population))}
    FILE.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
