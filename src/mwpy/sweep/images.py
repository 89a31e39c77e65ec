"""Compares images as pixels. It needs Pillow, so it is imported only where images are compared."""

from __future__ import annotations

import re
from functools import reduce
from io import BytesIO
from math import ceil
from typing import Any

from PIL import Image, ImageChops, ImageSequence

from mwpy.sweep.files import File

# What Pillow may read. For other formats, such as EPS, it would start programs.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")

# A shown picture has the part with differences and this many pixels around it. It is at most this wide and high.
MARGIN, SHOWN_SIDE = 50, 600


def image_change(old: File, new: File, tolerance: float) -> tuple[bool, str, tuple[bytes, ...]]:
    """Compare two images.

    Args:
        tolerance: by how much red, green, blue and alpha of a pixel may differ. They are from 0 to 255.

    Returns:
        Whether they differ; how, in words; and PNG files of the old one, the new one and their difference, as far as
        there are any.

    Raises:
        Exception: of many kinds, if a file is damaged.
    """
    images: Any = [Image.open(BytesIO(file.content), formats=FORMATS) for file in (old, new)]
    # Pillow reads such values as 8 bits, or in a mode of its own. It could see the same pixels in different files.
    if any(image.mode[0] in "IF" or re.search(";16|65535", str(image.tile)) for image in images):
        return True, "compared by content: a value has more than 8 bits", ()
    sizes = [", ".join("{}x{}".format(*frame.size) for frame in ImageSequence.Iterator(image)) for image in images]
    if sizes[0] != sizes[1]:
        pictures = tuple(_png(next(ImageSequence.Iterator(image)).convert("RGBA")) for image in images)
        return True, f"sizes: {sizes[0]} -> {sizes[1]} pixels", pictures
    differing, most, pictures = 0, 0, ()
    for frames in zip(*map(ImageSequence.Iterator, images), strict=True):
        before, after = (frame.convert("RGBA") for frame in frames)
        by: Any = reduce(ImageChops.lighter, ImageChops.difference(before, after).split())
        mask = by.point(lambda value: 255 * (value > tolerance))
        differing, most = differing + mask.histogram()[255], max(most, by.getextrema()[1])
        pictures = pictures or (_pictures(before, after, mask) if mask.getbbox() else ())
    return differing > 0, f"pixels that differ by more than {tolerance:g}: {differing}, by at most {most}", pictures


def _pictures(before: Any, after: Any, mask: Any) -> tuple[bytes, ...]:
    """Return both pictures, and a pale one that is red where they differ."""
    left, top, right, bottom = mask.getbbox()
    ends = min(mask.width, right + MARGIN), min(mask.height, bottom + MARGIN)
    box = max(0, left - MARGIN), max(0, top - MARGIN), *ends
    factor = ceil(max(box[2] - box[0], box[3] - box[1]) / SHOWN_SIDE)
    before, after, mask = (image.crop(box).reduce(factor) for image in (before, after, mask))
    difference = after.convert("L").point(lambda value: 180 + 0.3 * value).convert("RGB")
    difference.paste((200, 0, 0), mask=mask.point(lambda value: 255 * (value > 0)))
    return _png(before), _png(after), _png(difference)


def _png(image: Image.Image) -> bytes:
    image.thumbnail((SHOWN_SIDE, SHOWN_SIDE))
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
