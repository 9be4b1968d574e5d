"""Images in messages and beside tokens: how they are written, and which are refused.

A message holds an image as a content part in OpenAI's form, `{"type": "image_url", "image_url": {"url": URI}}`. Only
data URIs are read: no process of a run fetches an address that a message names.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from asyncrl.errors import InputError
from asyncrl.types import Message, PlacedImage

FORMATS = ("PNG", "JPEG", "WEBP")
MAX_BYTES = 8 * 2**20
"""The most bytes of one encoded image."""
MAX_PIXELS = 4096 * 4096
"""The most pixels of one image, counted before it is decoded: a file of a few kilobytes may decode to gigabytes."""
MAX_RATIO = 200
"""Longer side over shorter side, as the image processors of Qwen's models allow."""
MAX_IMAGES = 256
"""The most images of one trajectory."""
_DATA = "data:"
_BASE64 = ";base64"


def image_key(data: bytes) -> str:
    """Return what an image is known by: a hash of its file."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def image_part(data: bytes) -> dict[str, Any]:
    """Return the content part that shows an encoded image. Raises `InputError`."""
    return {"type": "image_url", "image_url": {"url": data_uri(data)}}


def data_uri(data: bytes) -> str:
    """Return an encoded image as a data URI. Raises `InputError`."""
    _, _, name = _header(data, "image")
    return f"{_DATA}image/{name.lower()}{_BASE64},{base64.b64encode(data).decode()}"


def png_part(image: Any) -> dict[str, Any]:
    """Return the content part that shows a `PIL.Image.Image`, as PNG."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return image_part(file.getvalue())


def image_size(data: bytes, where: str = "image") -> tuple[int, int]:
    """Return width and height by the header alone. Raises `InputError` for what is refused."""
    width, height, _ = _header(data, where)
    return width, height


def decode_image(data: bytes, where: str = "image") -> Any:
    """Return the image as an RGB `PIL.Image.Image`. Raises `InputError` where it is broken or refused."""
    from PIL import Image

    _header(data, where)
    try:
        with warnings.catch_warnings(action="ignore"):
            return Image.open(io.BytesIO(data), formats=FORMATS).convert("RGB")
    except Exception as error:
        raise InputError(f"{where}: cannot be decoded: {type(error).__name__}: {str(error)[:200]}") from None


def is_image(part: Any) -> bool:
    """Whether a content part shows an image."""
    return isinstance(part, dict) and part.get("type") == "image_url"


def has_images(messages: Sequence[Message]) -> bool:
    return any(is_image(part) for message in messages for part in _parts(message))


def without_images(messages: Sequence[Message]) -> tuple[list[Message], list[bytes]]:
    """Return the messages as chat templates take them, with `{"type": "image", "image": KEY}` for each image, and the
    images in their order.

    Raises `InputError` where one is no data URI or is refused.
    """
    found: list[bytes] = []
    plain: list[Message] = []
    for number, message in enumerate(messages):
        if not any(is_image(part) for part in _parts(message)):
            plain.append(message)
            continue
        parts = []
        for place, part in enumerate(message["content"]):
            if is_image(part):
                found.append(read_image(part, f"messages[{number}].content[{place}]"))
                part = {"type": "image", "image": image_key(found[-1])}
            parts.append(part)
        plain.append({**message, "content": parts})
    if len(found) > MAX_IMAGES:
        raise InputError(f"messages: must hold at most {MAX_IMAGES} images, got {len(found)}")
    return plain, found


def read_image(part: dict[str, Any], where: str) -> bytes:
    """Return the file in a content part. Raises `InputError`."""
    inner = part.get("image_url")
    url = inner.get("url") if isinstance(inner, dict) else inner
    if not isinstance(url, str):
        raise InputError(f"{where}.image_url: must be {{'url': a data URI}}")
    return read_data_uri(url, f"{where}.image_url.url")


def read_data_uri(url: str, where: str) -> bytes:
    """Return the bytes of a data URI of an image. Raises `InputError` for any other address, which is not fetched."""
    head, comma, text = url.partition(",")
    if not head.startswith(_DATA) or not comma:
        raise InputError(
            f"{where}: must be a data URI (data:image/png;base64,...), got {url[:32]!r}; addresses are not fetched"
        )
    if not head.endswith(_BASE64):
        raise InputError(f"{where}: must be base64, got {head[:64]!r}")
    if len(text) > MAX_BYTES * 4 // 3 + 4:
        raise InputError(f"{where}: must be at most {MAX_BYTES} bytes")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"{where}: not base64: {error}") from None
    _header(data, where)
    return data


def images_in(images: Sequence[PlacedImage], start: int, end: int) -> tuple[PlacedImage, ...]:
    """Return the images whose tokens lie in [start, end), with their places counted from `start`."""
    return moved([image for image in images if start <= image.start and image.end <= end], -start)


def moved(images: Sequence[PlacedImage], by: int) -> tuple[PlacedImage, ...]:
    """Return the images with `by` added to their places."""
    return tuple(PlacedImage(i.start + by, i.end + by, i.key, i.data) for i in images)


def _parts(message: Message) -> Iterator[Any]:
    content = message.get("content")
    if isinstance(content, list):
        yield from content


def _header(data: bytes, where: str) -> tuple[int, int, str]:
    """Return width, height and format. Nothing is decoded."""
    from PIL import Image

    if not 0 < len(data) <= MAX_BYTES:
        raise InputError(f"{where}: must have 1 to {MAX_BYTES} bytes, got {len(data)}")
    try:
        # PIL warns of large images here, which are refused below.
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height, name = image.width, image.height, str(image.format)
            frames = getattr(image, "n_frames", 1)
    except Image.DecompressionBombError:
        raise InputError(f"{where}: must have at most {MAX_PIXELS} pixels") from None
    except Exception as error:
        raise InputError(
            f"{where}: must be a whole image of format {', '.join(FORMATS)} ({type(error).__name__})"
        ) from None
    if width * height > MAX_PIXELS or max(width, height) > MAX_RATIO * min(width, height):
        raise InputError(
            f"{where}: must have at most {MAX_PIXELS} pixels and sides of at most 1:{MAX_RATIO}, got {width}x{height}"
        )
    if frames != 1:
        raise InputError(f"{where}: must be one picture, got {frames} frames")
    return width, height, name
