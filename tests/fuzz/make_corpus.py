"""Writes the fuzzer's corpus: small pictures of every kind of JPEG that is packed, and some that are refused."""

import io
import sys
from pathlib import Path

import numpy as np
from PIL import Image


def picture(width: int, height: int, channels: int) -> Image.Image:
    """Smooth colors with some noise."""
    random = np.random.default_rng(width * 1000 + height * 10 + channels)
    y, x = np.mgrid[0:height, 0:width]
    waves = [128 + 90 * np.sin((x + 1) * (c + 1) / 7 + y / (c + 3)) for c in range(channels)]
    levels = np.stack(waves, axis=-1) + random.normal(0, 12, (height, width, channels))
    return Image.fromarray(np.clip(levels, 0, 255).astype(np.uint8).squeeze())


def encoded(image: Image.Image, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", **options)
    return out.getvalue()


def corpus() -> dict[str, bytes]:
    """Name → file."""
    color, gray = picture(24, 17, 3), picture(19, 21, 1)
    return {
        "444": encoded(color, quality=90, subsampling="4:4:4"),
        "422": encoded(color, quality=75, subsampling="4:2:2"),
        "420": encoded(picture(40, 40, 3), quality=60, subsampling="4:2:0"),
        "gray": encoded(gray, quality=85),
        "restarts": encoded(color, quality=80, subsampling="4:2:0", restart_marker_blocks=1),
        "steep": encoded(picture(33, 9, 3), quality=100, subsampling="4:4:4", optimize=True),
        "coarse": encoded(picture(40, 33, 3), quality=3, subsampling="4:2:0"),
        "wide": encoded(picture(200, 8, 3), quality=70, subsampling="4:2:0"),
        "dot": encoded(picture(1, 1, 3).resize((1, 1)), quality=75),
        "progressive": encoded(color, quality=75, progressive=True),
        "cmyk": encoded(color.convert("CMYK"), quality=75),
    }


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in corpus().items():
        (folder / f"{name}.jpg").write_bytes(data)


if __name__ == "__main__":
    main()
