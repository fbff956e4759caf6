"""What you will see: a model run on an image, and what it says: classes, or a picture.

Usage: python examples/12_image.py [MODEL.onnx IMAGE] [--labels NAMES.txt] [--mean M M M]
                                   [--std S S S] [--device DEVICE] [--output FOLDER]

The model has one input of shape (1, 3 or 1, height, width); values are (pixel / 255 - mean) / std.
An output of 1 or 3 channels becomes FOLDER/NAME.png. Without arguments a digit is classified.
"""

import argparse
from pathlib import Path

import numpy as np
from photo import Image, save_png

import gpuedge

add = (parser := argparse.ArgumentParser()).add_argument
add("model", nargs="?", default=Path(__file__).parent / "models" / "digits.onnx")
add("image", nargs="?", default="out/digit.png")
add("--labels", type=Path)
add("--mean", type=float, nargs="+", default=0.0)
add("--std", type=float, nargs="+", default=1.0)
add("--device", default="auto")
add("--output", type=Path, default="out")
options = parser.parse_args()
if options.image == parser.get_default("image"):
    from train_digits import load_split

    save_png(Path(options.image), load_split()[2][0].repeat(3, axis=0))

with gpuedge.Session(options.model, device=options.device) as session:
    ((key, (_, (_, channels, *size))),) = session.inputs.items()
    photo = Image.open(options.image).convert("L" if channels == 1 else "RGB")
    if all(isinstance(side, int) for side in size):  # a name or None where that is open
        photo = photo.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    values = np.asarray(photo, np.float32).reshape(photo.height, photo.width, -1) / 255
    values = (values - np.float32(options.mean)) / np.float32(options.std)
    results = session.run({key: values.transpose(2, 0, 1)[None]})
    print("ran on", *sorted({row.device for row in session.placement}))

names = options.labels.read_text("utf-8").splitlines() if options.labels else None
for name, result in results.items():
    if result.ndim == 4 and result.shape[1] in (1, 3):
        save_png(options.output / f"{name}.png", result[0].repeat(3 // result.shape[1], axis=0))
        print("wrote", options.output / f"{name}.png")
    else:
        scores = result.reshape(-1).astype(np.float64)
        if (scores < 0).any() or (scores > 1).any():  # not probabilities yet: softmax
            scores = np.exp(scores - scores.max())
            scores /= scores.sum()
        for best in np.argsort(-scores)[:5]:
            print(f"{scores[best]:7.2%}  class {best} {names[best] if names else ''}".rstrip())
