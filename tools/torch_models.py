"""Exports ten networks of PyTorch to tests/models/torch, as programs of users would.

Usage: PYTHON tools/torch_models.py [--to FOLDER] [NAME...]

PYTHON is an interpreter that has torch, onnx and onnxscript; gpuedge needs none of them, so they
belong into a virtual environment of their own. Architectures follow the papers named below, as
torchvision has them, but narrow, with weights from a seed. Every file comes from
`torch.onnx.export(dynamo=True)`; those ending in ``_script`` from the older exporter, which traces
TorchScript, and those in ``_dynamic`` have open extents.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from onnxscript.function_libs.torch_lib.ops.vision import torchvision_nms
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "models" / "torch"
SEED = 20


def _unit(
    given: int, out: int, size: int = 3, *, stride: int = 1, groups: int = 1,
    act: Callable[[], nn.Module] = nn.ReLU,
) -> nn.Sequential:  # fmt: skip
    conv = nn.Conv2d(given, out, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), act())


# --- images to classes ---------------------------------------------------------------------------


class Bottleneck(nn.Module):
    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            _unit(given, width, 1),
            _unit(width, width, stride=stride),
            _unit(width, out, 1, act=nn.Identity),
        )
        self.short: nn.Module = nn.Identity()
        if stride > 1 or given != out:
            self.short = _unit(given, out, 1, stride=stride, act=nn.Identity)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.short(x))


class ResNet(nn.Module):
    """He et al., "Deep residual learning for image recognition", 2015."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_unit(3, 16, 7, stride=2), nn.MaxPool2d(3, 2, 1))
        blocks, given = [], 16
        for width, stride in ((8, 1), (8, 1), (12, 2), (16, 2)):
            blocks.append(Bottleneck(given, width, stride))
            given = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(given, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.blocks(self.stem(x)))
        return self.fc(torch.flatten(x, 1))


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, inner: int, act: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)
        self.act, self.gate = act, gate

    def forward(self, x: Tensor) -> Tensor:
        scale = functional.adaptive_avg_pool2d(x, 1)
        return x * self.gate(self.up(self.act(self.down(scale))))


class Inverted(nn.Module):
    """Widened, filtered channel by channel, squeezed and excited, and narrowed again."""

    def __init__(
        self, given: int, inner: int, out: int, size: int, *, stride: int,
        act: Callable[[], nn.Module], excite: nn.Module | None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.is_residual = stride == 1 and given == out
        self.body = nn.Sequential(
            _unit(given, inner, 1, act=act),
            _unit(inner, inner, size, stride=stride, groups=inner, act=act),
            excite or nn.Identity(),
            _unit(inner, out, 1, act=nn.Identity),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.is_residual else self.body(x)


class MobileNetV3(nn.Module):
    """Howard et al., "Searching for MobileNetV3", 2019."""

    def __init__(self) -> None:
        super().__init__()
        rows = (
            (8, 8, 8, 3, 2, nn.ReLU, True),
            (8, 24, 12, 3, 2, nn.ReLU, False),
            (12, 32, 12, 3, 1, nn.ReLU, False),
            (12, 32, 20, 5, 2, nn.Hardswish, True),
            (20, 60, 20, 5, 1, nn.Hardswish, True),
        )
        blocks = [_unit(3, 8, stride=2, act=nn.Hardswish)]
        for given, inner, out, size, stride, act, is_excited in rows:
            excite = SqueezeExcite(inner, 8, nn.ReLU(), nn.Hardsigmoid()) if is_excited else None
            blocks.append(Inverted(given, inner, out, size, stride=stride, act=act, excite=excite))
        self.features = nn.Sequential(*blocks, _unit(20, 72, 1, act=nn.Hardswish))
        self.head = nn.Sequential(
            nn.Linear(72, 96), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(96, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = functional.adaptive_avg_pool2d(self.features(x), 1)
        return self.head(torch.flatten(x, 1))


class EfficientNet(nn.Module):
    """Tan and Le, "EfficientNet", 2019."""

    def __init__(self) -> None:
        super().__init__()
        rows = ((8, 8, 8, 3, 1), (8, 32, 12, 3, 2), (12, 48, 12, 3, 1), (12, 48, 20, 5, 2),
                (20, 80, 20, 5, 1))  # fmt: skip
        blocks = [_unit(3, 8, stride=2, act=nn.SiLU)]
        for given, inner, out, size, stride in rows:
            excite = SqueezeExcite(inner, max(2, given // 4), nn.SiLU(), nn.Sigmoid())
            blocks.append(
                Inverted(given, inner, out, size, stride=stride, act=nn.SiLU, excite=excite)
            )
        self.features = nn.Sequential(*blocks, _unit(20, 80, 1, act=nn.SiLU))
        self.fc = nn.Linear(80, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x).mean((2, 3)))


class VisionTransformer(nn.Module):
    """Dosovitskiy et al., "An image is worth 16x16 words", 2020."""

    def __init__(self, width: int = 32, patch: int = 8, size: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.randn(1, 1, width) * 0.1)
        self.places = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.1)
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, 0.0, functional.gelu, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width),
                                             enable_nested_tensor=False)  # fmt: skip
        self.fc = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.fc(self.encoder(x)[:, 0])


class ConvNextBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, 1e-6)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(functional.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class LayerNorm2d(nn.LayerNorm):
    """Over channels, which do not lie last."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """Liu et al., "A ConvNet for the 2020s", 2022."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 4, 4), LayerNorm2d(16), ConvNextBlock(16), ConvNextBlock(16),
            LayerNorm2d(16), nn.Conv2d(16, 32, 2, 2), ConvNextBlock(32),
        )  # fmt: skip
        self.norm, self.fc = LayerNorm2d(32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(functional.adaptive_avg_pool2d(self.features(x), 1))
        return self.fc(torch.flatten(x, 1))


# --- images to images ----------------------------------------------------------------------------


def _double(given: int, out: int) -> nn.Sequential:
    return nn.Sequential(_unit(given, out), _unit(out, out))


class UNet(nn.Module):
    """Ronneberger et al., "U-Net", 2015: once up by a transposed convolution, once by resizing.

    Like usual copies of it, it pads what comes up to the size of what it is joined to.
    """

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = _double(3, 8), _double(8, 16), _double(16, 24)
        self.pool = nn.MaxPool2d(2)
        self.up_two = nn.ConvTranspose2d(24, 16, 2, 2)
        self.up_one = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.back_two, self.back_one = _double(32, 16), _double(24, 8)
        self.out = nn.Conv2d(8, 3, 1)

    def _join(self, x: Tensor, skip: Tensor) -> Tensor:
        down, right = skip.shape[2] - x.shape[2], skip.shape[3] - x.shape[3]
        x = functional.pad(x, [right // 2, right - right // 2, down // 2, down - down // 2])
        return torch.cat([skip, x], 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.one(x)
        two = self.two(self.pool(one))
        x = self.up_two(self.three(self.pool(two)))
        x = self.back_two(self._join(x, two))
        return self.out(self.back_one(self._join(self.up_one(x), one)))


class DeepLab(nn.Module):
    """Chen et al., "Rethinking atrous convolution", 2017."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            _unit(3, 12, stride=2), _unit(12, 24, stride=2),
            nn.Conv2d(24, 24, 3, padding=2, dilation=2, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
        )  # fmt: skip
        rates = [
            nn.Sequential(nn.Conv2d(24, 12, 3, padding=r, dilation=r, bias=False),
                          nn.BatchNorm2d(12), nn.ReLU()) for r in (2, 4, 6)
        ]  # fmt: skip
        self.branches = nn.ModuleList([_unit(24, 12, 1), *rates])
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), _unit(24, 12, 1))
        self.project, self.out = _unit(60, 16, 1), nn.Conv2d(16, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        size, y = x.shape[-2:], self.backbone(x)
        whole = functional.interpolate(
            self.pooled(y), size=y.shape[-2:], mode="bilinear", align_corners=False
        )
        y = torch.cat([*(branch(y) for branch in self.branches), whole], 1)
        y = self.out(self.project(y))
        return functional.interpolate(y, size=size, mode="bilinear", align_corners=False)


# --- sequences -----------------------------------------------------------------------------------


class Tagger(nn.Module):
    """Huang et al., "Bidirectional LSTM-CRF models for sequence tagging", 2015, without the CRF."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(200, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 24, 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(48, 9)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.words(tokens))
        return functional.log_softmax(self.out(hidden), -1)


class DecoderLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.after = nn.RMSNorm(width, 1e-6), nn.RMSNorm(width, 1e-6)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def _split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = (self._split(linear(y)) for linear in (self.q, self.k, self.v))
        q, k = (t * cos + _rotated(t) * sin for t in (q, k))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.after(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def _rotated(x: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return torch.cat([-high, low], -1)


class Decoder(nn.Module):
    """Touvron et al., "LLaMA", 2023: RMS norms, rotary positions (Su et al. 2021), gated SiLU."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(160, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads) for _ in range(2))
        self.norm = nn.RMSNorm(width, 1e-6)
        size = width // heads
        self.register_buffer("speeds", 10000.0 ** (-torch.arange(0, size, 2) / size))

    def forward(self, tokens: Tensor) -> Tensor:
        angles = torch.arange(tokens.shape[1])[:, None] * self.speeds
        angles = torch.cat([angles, angles], -1)
        cos, sin = angles.cos(), angles.sin()
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x) @ self.words.weight.T


# --- boxes ---------------------------------------------------------------------------------------


def _nms_operator() -> Callable[[Tensor, Tensor, float], Tensor]:
    """Return an operator that exports as torchvision.ops.nms does, which is not installed here."""
    if not KEPT:
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.impl("nms", _nms, "CPU")
        torch.library.register_fake("torchvision::nms")(_nms_shape)
        KEPT.append(library)
    return torch.ops.torchvision.nms


KEPT: list[Any] = []
"""A library of operators, which ends with the object."""


def _nms_shape(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    return dets.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.long)


def _nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Pick the best box, drop those that overlap with it, and so on."""
    order, picked = scores.argsort(descending=True, stable=True).tolist(), []
    areas = (dets[:, 2:] - dets[:, :2]).prod(1)
    while order:
        first, *rest = order
        picked.append(first)
        low = torch.maximum(dets[first, :2], dets[rest, :2])
        high = torch.minimum(dets[first, 2:], dets[rest, 2:])
        both = (high - low).clamp(min=0).prod(1)
        share = both / (areas[first] + areas[rest] - both)
        order = [i for i, s in zip(rest, share.tolist(), strict=True) if s <= iou_threshold]
    return torch.tensor(picked, dtype=torch.long)


class Detector(nn.Module):
    """Liu et al., "SSD", 2015: offsets to anchors on two grids, then torchvision's batched NMS."""

    def __init__(self, size: int = 64, classes: int = 4) -> None:
        super().__init__()
        self.nms, self.size, self.classes = _nms_operator(), size, classes
        self.backbone = nn.Sequential(
            _unit(3, 12, stride=2), _unit(12, 24, stride=2), _unit(24, 32, stride=2)
        )
        self.further = _unit(32, 32, stride=2)
        self.boxes = nn.ModuleList(nn.Conv2d(32, 2 * 4, 3, padding=1) for _ in range(2))
        self.scores = nn.ModuleList(nn.Conv2d(32, 2 * classes, 3, padding=1) for _ in range(2))
        anchors = []
        for cells, scale in ((size // 8, 12.0), (size // 16, 28.0)):
            y, x = torch.meshgrid(*[(torch.arange(cells) + 0.5) * size / cells] * 2, indexing="ij")
            for shape in (0.7, 1.4):
                width, height = torch.full_like(x, scale * shape), torch.full_like(x, scale / shape)
                anchors.append(torch.stack([x, y, width, height], -1).reshape(-1, 4))
        self.register_buffer("anchors", torch.cat(anchors))

    def _flat(self, x: Tensor, parts: int) -> Tensor:
        return x.view(2, parts, -1).transpose(1, 2).reshape(-1, parts)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        near = self.backbone(x)
        maps = (near, self.further(near))
        offsets = torch.cat([self._flat(h(m), 4) for h, m in zip(self.boxes, maps, strict=True)])
        logits = torch.cat(
            [self._flat(h(m), self.classes) for h, m in zip(self.scores, maps, strict=True)]
        )
        centres = self.anchors[:, :2] + 0.1 * offsets[:, :2] * self.anchors[:, 2:]
        sizes = self.anchors[:, 2:] * torch.exp(0.2 * offsets[:, 2:])
        boxes = torch.cat([centres - sizes / 2, centres + sizes / 2], 1).clamp(0, self.size)
        scores, labels = logits.softmax(-1).max(-1)
        scores, best = scores.topk(50)
        boxes, labels = boxes[best], labels[best]
        # boxes of different classes never meet
        kept = self.nms(boxes + labels[:, None] * (self.size + 1.0), scores, 0.4)
        return boxes[kept], scores[kept], labels[kept]


# --- exports -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Network:
    """A network, the shape of its input, how many tokens it knows (0: images), its open axes."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    tokens: int = 0
    open: dict[int, str] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("output",)
    script: dict[int, str] | None = None
    """Open axes of a file of the older exporter."""


IMAGES = {0: "batch", 2: "height", 3: "width"}
NETWORKS = {
    "resnet": Network(ResNet, (1, 3, 64, 64), open={0: "batch"}),
    "mobilenetv3": Network(MobileNetV3, (1, 3, 64, 64)),
    "efficientnet": Network(EfficientNet, (1, 3, 64, 64)),
    "vit": Network(VisionTransformer, (1, 3, 32, 32), open={0: "batch"}),
    "convnext": Network(ConvNeXt, (1, 3, 32, 32)),
    "unet": Network(UNet, (1, 3, 48, 64), open=IMAGES, script=IMAGES),
    "deeplab": Network(DeepLab, (1, 3, 48, 64), open={2: "height", 3: "width"}),
    "tagger": Network(Tagger, (1, 12), 200, {0: "batch"}, script={0: "batch", 1: "length"}),
    "decoder": Network(Decoder, (1, 12), 160, {0: "batch", 1: "length"}),
    "detector": Network(Detector, (1, 3, 64, 64), outputs=("boxes", "scores", "labels")),
}


def made(network: Network) -> nn.Module:
    """Return a network with weights from the seed, whose batch norms have seen something."""
    torch.manual_seed(SEED)
    module = network.make()
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight)  # activations keep their size
        elif isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.running_mean, 0, 0.2)
            nn.init.uniform_(part.running_var, 0.5, 1.5)
            nn.init.uniform_(part.weight, 0.8, 1.2)
            nn.init.normal_(part.bias, 0, 0.1)
    return module.eval()


def example(network: Network, shape: tuple[int, ...]) -> Tensor:
    """Return an input."""
    if network.tokens:
        return torch.randint(1, network.tokens, shape)
    return torch.rand(shape)


def _translations() -> dict[Any, Any]:
    """Return the exporter's own translation of NMS, which it looks for with torchvision only."""
    return {} if not KEPT else {torch.ops.torchvision.nms.default: torchvision_nms}


def export(name: str, to: Path) -> list[Path]:
    """Write all forms of a network and return their files."""
    network = NETWORKS[name]
    given = "tokens" if network.tokens else "image"
    common: dict[str, Any] = {"input_names": [given], "output_names": list(network.outputs)}
    fixed, files = example(network, network.shape), [to / f"{name}.onnx"]
    torch.onnx.export(made(network), (fixed,), files[0], dynamo=True, external_data=False,
                      custom_translation_table=_translations(), **common)  # fmt: skip
    if network.open:
        # not 1, which older versions of torch take for fixed
        shape = tuple(2 if i == 0 and 0 in network.open else n for i, n in enumerate(network.shape))
        axes = dict.fromkeys(network.open, Dim.DYNAMIC)
        files.append(to / f"{name}_dynamic.onnx")
        torch.onnx.export(made(network), (example(network, shape),), files[-1], dynamo=True,
                          dynamic_shapes=(axes,), external_data=False, **common)  # fmt: skip
    if network.script is not None:
        files.append(to / f"{name}_script.onnx")
        torch.onnx.export(made(network), (fixed,), files[-1], dynamo=False, opset_version=17,
                          dynamic_axes={given: network.script}, **common)  # fmt: skip
    return files


def main() -> None:
    """Export what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--to", type=Path, default=FOLDER, metavar="FOLDER")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in given.names or NETWORKS:
        for file in export(name, given.to):
            print(f"{file.name}: {file.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
