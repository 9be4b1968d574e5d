"""The images of a row: where they are read from, and where in the prompt they stand."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.images import MAX_BYTES, has_images, image_part, is_image
from asyncrl.types import Message

MARK = "<image>"
"""Where an image stands in a text, as files for other trainers have it."""
SHOWN_CHARACTERS = 200


def show_images(
    messages: list[Message], row: Mapping[str, Any], column: str, folders: Sequence[Path]
) -> None:
    """Put the images of a row, and those that its messages hold or name, into its messages.

    column: that of the row's images, empty for none. folders: as in `read_pictures`. Raises `ValueError` for what is no
    image, and as `show` does.
    """
    read_own_pictures(messages, folders)
    images = read_pictures(column, row.get(column), folders) if column else []
    if column or any(isinstance(message.get("content"), list) for message in messages):
        show(messages, images, marked=bool(column))


def read_pictures(column: str, found: Any, folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the content parts of a column's image or images.

    found: an image or a list of images. Each is what `datasets` keeps of it, a data URI, base64, or the name of a file:
    absolute, or relative to the folder of the rows. folders: where the files of the source are; none of a data set of
    the hub, whose rows name no files here. Raises `ValueError` for what is no image.
    """
    every = found if isinstance(found, list) else [] if found in (None, "") else [found]
    parts = []
    for one in every:
        try:
            parts.append(image_part(_file(one, folders)))
        except (TypeError, ValueError, InputError) as error:
            raise ValueError(f"{column}: {error}") from error
    return parts


def read_own_pictures(messages: list[Message], folders: Sequence[Path]) -> None:
    """Read the images that parts of messages hold or name themselves, as `{"type": "image", "image": ...}` or as
    `{"type": "image_url", "image_url": {"url": ...}}`.

    folders: as in `read_pictures`. Raises `ValueError` for what is no image.
    """
    for number, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list) and any(_own(part) is not None for part in content):
            read = [
                part if (own := _own(part)) is None else read_pictures("content", own, folders)[0]
                for part in content
            ]
            messages[number] = message | {"content": read}


def show(messages: list[Message], images: Sequence[dict[str, Any]], marked: bool = True) -> None:
    """Put images where the messages have `<image>` or parts of the type "image"; where they have none of either, before
    the text of the user's last message.

    marked: whether `<image>` in a text is such a place, as it is where the row's images are shown. Where parts alone
    have a place for each image, it is a text that somebody wrote.
    Raises `TypeError` for content that is no parts, `ValueError` where there are more or fewer places than images.
    """
    shown = [_parts(message, marked=False) for message in messages]
    if marked and not 0 < _places(shown) == len(images):
        shown = [_parts(message, marked=True) for message in messages]
    places = _places(shown)
    if not places and images:
        last = next((n for n in reversed(range(len(messages))) if messages[n]["role"] == "user"), None)
        if last is None:
            raise ValueError("the prompt has no message of the user that could show an image")
        messages[last] = messages[last] | {"content": [*images, *shown[last]]}
    elif places != len(images):
        hint = "" if marked else "; data.images names the column that has them"
        raise ValueError(f"the prompt has places for {places} images, and the row has {len(images)}{hint}")
    left = iter(images if places else ())
    for number, parts in enumerate(shown):
        if {"type": "image"} in parts:
            filled = [next(left) if part == {"type": "image"} else part for part in parts]
            messages[number] = messages[number] | {"content": filled}


def _places(shown: Sequence[Sequence[Mapping[str, Any]]]) -> int:
    return sum(part == {"type": "image"} for parts in shown for part in parts)


def show_as_in(messages: list[Message], opening: Sequence[Message]) -> None:
    """Put the images of a row's opening messages into its whole conversation, which has been read without them.

    Raises as `show` does.
    """
    if has_images(opening) and not has_images(messages):
        show(messages, [part for message in opening for part in _parts(message) if is_image(part)])


def _own(part: Any) -> Any:
    """Return what a part gives as its image; None where it gives none."""
    if not isinstance(part, Mapping) or part.get("type") not in ("image", "image_url"):
        return None
    found = next(
        (part[key] for key in ("image_url", "image", "url", "path", "base64") if part.get(key)), None
    )
    return found.get("url") or found if isinstance(found, Mapping) else found


def _parts(message: Message, marked: bool = True) -> list[dict[str, Any]]:
    """Return a message's content as parts, with `{"type": "image"}` where an image is to stand."""
    content = message.get("content")
    given = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or [])
    parts: list[dict[str, Any]] = []
    for part in given:
        if not isinstance(part, Mapping):
            raise TypeError(
                f"a message's content must be text or a list of parts, got {part!r:.{SHOWN_CHARACTERS}}"
            )
        if part.get("type") == "image":
            parts.append({"type": "image"})
        elif part.get("type") == "text" and message.get("role") != "assistant" and marked:
            parts += _split(str(part.get("text") or ""))
        else:
            parts.append(dict(part))
    return parts


def _split(text: str) -> list[dict[str, Any]]:
    if MARK not in text:
        return [{"type": "text", "text": text}]
    parts: list[dict[str, Any]] = []
    for number, piece in enumerate(text.split(MARK)):
        parts += [{"type": "image"}] if number else []
        parts += [{"type": "text", "text": piece}] if piece else []
    return parts


def _file(one: Any, folders: Sequence[Path]) -> bytes:
    """Return an image's file. Raises `TypeError`, `ValueError`."""
    if isinstance(one, Mapping):
        one = one.get("bytes") or one.get("path")
    if not isinstance(one, str) or not one:
        raise TypeError(
            f"must be an image, its file's name, or a list of them, got {one!r:.{SHOWN_CHARACTERS}}"
        )
    if one.startswith(("http://", "https://")):
        raise ValueError(
            f"{one:.{SHOWN_CHARACTERS}}: addresses are not fetched; save the image and name its file"
        )
    if one.startswith("data:"):
        return base64.b64decode(one.partition(",")[2])
    if named := _named(one, folders):
        return named
    try:
        return base64.b64decode(one, validate=True)
    except binascii.Error:
        where = f"in {' or '.join(map(str, folders))}" if folders else "in the data set"
        raise ValueError(f"there is no file {one!r:.{SHOWN_CHARACTERS}} {where}") from None


def _named(name: str, folders: Sequence[Path]) -> bytes | None:
    """Return the bytes of the file of that name; None where there is none."""
    if len(name) > 1000:
        return None
    try:
        files = list(dict.fromkeys(folder / name for folder in folders if (folder / name).is_file()))
    except (OSError, ValueError):
        return None
    if len(files) > 1:
        raise ValueError(
            f"{name!r} is a file in {files[0].parent} and in {files[1].parent}: give whole names"
        )
    if not files:
        return None
    if (size := files[0].stat().st_size) > MAX_BYTES:
        raise ValueError(f"{files[0]}: holds {size} bytes; an image has at most {MAX_BYTES}")
    return files[0].read_bytes()
