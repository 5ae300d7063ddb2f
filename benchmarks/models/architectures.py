"""The models that are timed: real architectures with random weights, and the network that reads digits."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from population import FILE as POPULATION
from population import four_layers

from tilewright.tuner.network.digits import trained

Built = tuple[torch.nn.Module, Any]
"""A model, and the sample that it is called with."""


@dataclass(frozen=True)
class Architecture:
    """A row to be: what is built for a batch, and what its throughput counts."""

    build: Callable[[int, torch.dtype], Built]
    batch: int
    dtype: torch.dtype
    count: int  # of units in the batch: tokens, samples
    unit: str
    weights: str | None = None  # of linear layers, where accelerate may have them so


def bert(tokens: int) -> Callable[[int, torch.dtype], Built]:
    """BERT-base."""

    def build(batch: int, dtype: torch.dtype) -> Built:
        from transformers import BertConfig, BertModel  # noqa: PLC0415 - each row needs its own

        config = BertConfig()
        return BertModel(config).to(dtype), {"input_ids": torch.randint(0, config.vocab_size, (batch, tokens))}

    return build


def vit(batch: int, dtype: torch.dtype) -> Built:
    """ViT-B/16, images of 224 x 224."""
    from transformers import ViTConfig, ViTModel  # noqa: PLC0415

    return ViTModel(ViTConfig()).to(dtype), {"pixel_values": torch.randn(batch, 3, 224, 224, dtype=dtype)}


def resnet(batch: int, dtype: torch.dtype) -> Built:
    """ResNet-50, images of 224 x 224."""
    from transformers import ResNetConfig, ResNetForImageClassification  # noqa: PLC0415

    images = {"pixel_values": torch.randn(batch, 3, 224, 224, dtype=dtype)}
    return ResNetForImageClassification(ResNetConfig(num_labels=1000)).to(dtype), images


def resnet_by_pixels(batch: int, dtype: torch.dtype) -> Built:
    """The same with the channels of a pixel side by side, as PyTorch's manual has it for convolutions."""
    model, images = resnet(batch, dtype)
    layout = torch.channels_last
    return model.to(memory_format=layout), {name: one.contiguous(memory_format=layout) for name, one in images.items()}


def decoder(tokens: int) -> Callable[[int, torch.dtype], Built]:
    """Four layers with the sizes of Llama-3-8B, without a cache of keys: of one token the attention is nothing."""

    def build(batch: int, dtype: torch.dtype) -> Built:
        from transformers import LlamaConfig, LlamaModel  # noqa: PLC0415

        sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
        model = LlamaModel(LlamaConfig(**sizes, num_hidden_layers=4, vocab_size=1024, use_cache=False)).to(dtype)
        return model, {"inputs_embeds": torch.randn(batch, tokens, 4096, dtype=dtype)}

    return build


def perceptron(batch: int, dtype: torch.dtype) -> Built:
    """The network that reads handwritten digits in the dashboard, with its own weights."""
    layers: list[torch.nn.Module] = []
    for layer in trained().layers:
        outputs, inputs = layer.weights.shape
        linear = torch.nn.Linear(inputs, outputs)
        linear.load_state_dict({"weight": torch.from_numpy(layer.weights), "bias": torch.from_numpy(layer.bias)})
        layers += [linear, torch.nn.ReLU()] if layer.activation == "relu" else [linear]
    model = torch.nn.Sequential(*layers, torch.nn.Softmax(-1)).to(dtype)
    return model, torch.rand(batch, model[0].in_features, dtype=dtype)


def gpt2(tokens: int) -> Callable[[int, torch.dtype], Built]:
    """GPT-2 as transformers builds it: its layers are `Conv1D`, and it returns a cache."""

    def build(batch: int, dtype: torch.dtype) -> Built:
        from transformers import GPT2Config, GPT2Model  # noqa: PLC0415

        config = GPT2Config()
        return GPT2Model(config).to(dtype), {"input_ids": torch.randint(0, config.vocab_size, (batch, tokens))}

    return build


def whisper_encoder(batch: int, dtype: torch.dtype) -> Built:
    """The encoder of Whisper-base, 30 s of sound each."""
    from transformers import WhisperConfig  # noqa: PLC0415
    from transformers.models.whisper.modeling_whisper import WhisperEncoder  # noqa: PLC0415

    config = WhisperConfig(d_model=512, encoder_layers=6, encoder_attention_heads=8, encoder_ffn_dim=2048)
    features = torch.randn(batch, config.num_mel_bins, 2 * config.max_source_positions, dtype=dtype)
    return WhisperEncoder(config).to(dtype), {"input_features": features}


def convnext(batch: int, dtype: torch.dtype) -> Built:
    """ConvNeXt-T, images of 224 x 224."""
    from transformers import ConvNextConfig, ConvNextModel  # noqa: PLC0415

    return ConvNextModel(ConvNextConfig()).to(dtype), {"pixel_values": torch.randn(batch, 3, 224, 224, dtype=dtype)}


def t5_encoder(tokens: int) -> Callable[[int, torch.dtype], Built]:
    """The encoder of T5-base."""

    def build(batch: int, dtype: torch.dtype) -> Built:
        from transformers import T5Config, T5EncoderModel  # noqa: PLC0415

        config = T5Config(d_model=768, d_ff=3072, num_layers=12, num_heads=12)
        return T5EncoderModel(config).to(dtype), {"input_ids": torch.randint(0, config.vocab_size, (batch, tokens))}

    return build


def of_population(kind: str) -> Callable[[int, torch.dtype], Built]:
    """An architecture of the population, with what its main input is called."""

    def build(batch: int, dtype: torch.dtype) -> Built:
        from transformers import AutoModel  # noqa: PLC0415

        config = four_layers(kind)
        model = AutoModel.from_config(config).to(dtype)
        return model, clicked_video(config, dtype) if kind == "sam2_video" else inputs_of(model, batch, dtype)

    return build


def clicked_video(config: Any, dtype: torch.dtype) -> dict[str, Any]:
    """The first frame of a video, in whose middle somebody has clicked at an object: SAM 2 is called with a session."""
    from transformers.models.sam2_video.modeling_sam2_video import Sam2VideoInferenceSession  # noqa: PLC0415

    size = config.image_size
    video = torch.randn(1, 3, size, size, dtype=dtype)
    places = dict.fromkeys(("inference_device", "inference_state_device", "video_storage_device"), video.device)
    session = Sam2VideoInferenceSession(video, size, size, dtype=dtype, **places)
    click = {"point_coords": torch.full((1, 1, 1, 2), size / 2), "point_labels": torch.ones(1, 1, 1, dtype=torch.int32)}
    session.add_point_inputs(session.obj_id_to_idx(1), 0, click)
    session.obj_with_new_inputs = [1]
    return {"inference_session": session, "frame_idx": 0}


def inputs_of(model: Any, batch: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """128 tokens, an image, or sound: what the model calls its main input, and tokens for a decoder."""
    config = model.config
    parts = [config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", ()))]
    names = inspect.signature(model.forward).parameters

    def first(*wanted: str, default: int) -> int:
        found = (getattr(part, name, None) for part in parts for name in wanted)
        numbers = (one[0] if isinstance(one, list | tuple) else one for one in found if one)
        return next((int(one) for one in numbers if isinstance(one, int)), default)

    tokens = torch.randint(3, first("vocab_size", default=1000), (batch, 128))
    size, channels = first("image_size", default=224), first("num_channels", default=3)
    length, features = 2 * first("max_source_positions", default=512), first("num_mel_bins", default=80)
    sound = torch.randn(batch, features, length, dtype=dtype)
    if first("input_feat_per_channel", default=0):  # frames behind one another
        sound = torch.randn(batch, 1024, first("input_feat_per_channel", default=80), dtype=dtype)
    channel = (1,) if config.model_type.startswith("omniasr") else ()  # which has sound as a signal of one channel
    known = {
        "input_ids": tokens,
        "decoder_input_ids": tokens[:, :32],
        "pixel_values": torch.randn(batch, channels, size, size, dtype=dtype),
        "input_features": sound,
        "input_values": torch.randn(batch, *channel, 16000, dtype=dtype),
    }
    wanted = {model.main_input_name, "decoder_input_ids"} & names.keys()
    return {name: one for name, one in known.items() if name in wanted}


FP32, BF16 = torch.float32, torch.bfloat16
MODELS = {
    "bert": Architecture(bert(512), 8, FP32, 8 * 512, "tokens"),
    "bert-1x128": Architecture(bert(128), 1, FP32, 128, "tokens"),
    "vit": Architecture(vit, 32, FP32, 32, "images"),
    "resnet-50": Architecture(resnet, 32, FP32, 32, "images"),
    "resnet-50-nhwc": Architecture(resnet_by_pixels, 32, FP32, 32, "images"),
    "digits": Architecture(perceptron, 256, FP32, 256, "images"),
    "decoder-prefill": Architecture(decoder(2048), 1, BF16, 2048, "tokens"),
    "decoder-1": Architecture(decoder(1), 1, BF16, 1, "tokens"),
    "decoder-8": Architecture(decoder(1), 8, BF16, 8, "tokens"),
    "decoder-32": Architecture(decoder(1), 32, BF16, 32, "tokens"),
    "decoder-1-int8": Architecture(decoder(1), 1, BF16, 1, "tokens", "int8"),
    "decoder-8-int8": Architecture(decoder(1), 8, BF16, 8, "tokens", "int8"),
    "decoder-32-int8": Architecture(decoder(1), 32, BF16, 32, "tokens", "int8"),
    "gpt2": Architecture(gpt2(512), 8, FP32, 8 * 512, "tokens"),
    "whisper-encoder": Architecture(whisper_encoder, 4, FP32, 4 * 1500, "tokens"),
    "convnext": Architecture(convnext, 16, FP32, 16, "images"),
    "t5-encoder": Architecture(t5_encoder(256), 16, FP32, 16 * 256, "tokens"),
}
DRAWN = {
    f"drawn-{kind}": Architecture(of_population(kind), 4, FP32, 4, "samples")
    for kind in json.loads(POPULATION.read_text(encoding="utf-8"))["drawn"]
}
GOALS = ("gpt2", "whisper-encoder", "convnext", "t5-encoder", "bert", "vit", *DRAWN)
"""The programs with goals of their own, tuned by nobody: those that are named, and twelve that were drawn."""
MODELS |= DRAWN
