import base64
import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from asyncrl.errors import InputError
from asyncrl.images import (
    MAX_BYTES,
    decode_image,
    has_images,
    image_key,
    image_part,
    image_size,
    images_in,
    png_part,
    read_data_uri,
    without_images,
)
from asyncrl.types import PlacedImage


def encoded(kind="PNG", size=(20, 10), **options):
    file = io.BytesIO()
    Image.new("RGB", size, (255, 0, 0)).save(file, kind, **options)
    return file.getvalue()


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def bomb(width, height):
    """A PNG of a few hundred bytes that says it is enormous."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_part_holds_the_file_as_it_is(kind):
    data = encoded(kind)
    messages = [{"role": "user", "content": [{"type": "text", "text": "see"}, image_part(data)]}]
    plain, files = without_images(messages)
    assert files == [data]
    assert plain[0]["content"][0] == {"type": "text", "text": "see"}
    assert plain[0]["content"][1] == {"type": "image", "image": image_key(data)}
    assert has_images(messages) and not has_images([{"role": "user", "content": "see"}])
    assert image_size(data) == (20, 10)


def test_a_drawn_picture_comes_back_pixel_by_pixel():
    drawn = Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3))
    _, (data,) = without_images([{"role": "user", "content": [png_part(drawn)]}])
    assert np.array_equal(np.asarray(decode_image(data)), np.asarray(drawn))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("https://example.com/cat.png", "addresses are not fetched"),
        ("file:///etc/passwd", "addresses are not fetched"),
        ("http://169.254.169.254/latest", "addresses are not fetched"),
        ("data:image/png,plain", "must be base64"),
        ("data:image/png;base64,%%%", "not base64"),
        ("data:image/png;base64,", "1 to"),
        ("data:image/svg+xml;base64," + base64.b64encode(b"<svg/>").decode(), "format PNG, JPEG, WEBP"),
        ("data:image/gif;base64," + base64.b64encode(encoded("GIF")).decode(), "format PNG, JPEG, WEBP"),
        ("data:image/png;base64," + "A" * (MAX_BYTES * 4 // 3 + 8), "at most"),
        ("data:image/png;base64," + base64.b64encode(bomb(100_000, 100_000)).decode(), "pixels"),
        ("data:image/png;base64," + base64.b64encode(bomb(4096, 8)).decode(), "1:200"),
    ],
)
def test_what_is_no_image_of_a_sane_size_in_a_data_uri_is_refused(url, says):
    with pytest.raises(InputError, match=says) as refused:
        read_data_uri(url, "messages[3]")
    assert str(refused.value).startswith("messages[3]")


def test_an_animation_and_a_file_that_breaks_off_are_refused():
    frames = [Image.new("RGB", (8, 8), (i * 100, 0, 0)) for i in range(3)]
    file = io.BytesIO()
    frames[0].save(file, "WEBP", save_all=True, append_images=frames[1:])
    with pytest.raises(InputError, match="frames"):
        image_size(file.getvalue())
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8))
    file = io.BytesIO()
    noise.save(file, "PNG")
    cut = file.getvalue()[:1000]
    assert image_size(cut) == (32, 32), "the header is whole"
    with pytest.raises(InputError, match="cannot be decoded"):
        decode_image(cut)


def test_the_images_of_a_part_of_the_tokens_are_counted_from_its_beginning():
    placed = tuple(PlacedImage(start, start + 4, "k", b"") for start in (2, 10, 20))
    assert [(i.start, i.end) for i in images_in(placed, 8, 22)] == [(2, 6)]
