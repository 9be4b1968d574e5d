import base64
import io
import json
from itertools import islice

import pytest
from PIL import Image

from asyncrl.config_sections import DataConfig
from asyncrl.errors import InputError
from asyncrl.extensions.vision.pictures import read_own_pictures, read_pictures, show, show_as_in
from asyncrl.images import MAX_BYTES, image_part
from asyncrl.rows.data import open_data


def png(color="red"):
    file = io.BytesIO()
    Image.new("RGB", (4, 3), color).save(file, "PNG")
    return file.getvalue()


def uri(data):
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def urls(parts):
    return [part["image_url"]["url"] for part in parts]


RED, BLUE = png(), png("blue")
SHOWN = {"type": "image_url", "image_url": {"url": uri(RED)}}
ALSO = {"type": "image_url", "image_url": {"url": uri(BLUE)}}


def text(words):
    return {"type": "text", "text": words}


def user(content):
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    "written",
    [
        {"bytes": base64.b64encode(RED).decode(), "path": "elsewhere.png"},
        {"path": "pics/red.png"},
        base64.b64encode(RED).decode(),
        uri(RED),
        "pics/red.png",
    ],
)
def test_an_image_is_what_datasets_keeps_a_data_uri_base64_or_the_name_of_a_file(written, tmp_path):
    (tmp_path / "pics").mkdir()
    (tmp_path / "pics/red.png").write_bytes(RED)
    (tmp_path / "blue.png").write_bytes(BLUE)
    assert urls(read_pictures("image", written, [tmp_path])) == [uri(RED)]
    several = [written, str(tmp_path / "blue.png")]
    assert urls(read_pictures("image", several, [tmp_path])) == [uri(RED), uri(BLUE)]


@pytest.mark.parametrize("nothing", [None, "", []])
def test_a_row_may_have_no_image(nothing, tmp_path):
    assert read_pictures("image", nothing, [tmp_path]) == []


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("a.png", r"^image: there is no file 'a.png' in .*rows$"),
        ("https://x.org/a.png", "image: https://x.org/a.png: addresses are not fetched; save the image"),
        ("both.png", "image: 'both.png' is a file in .*rows and in .*more: give whole names"),
        ("large.png", rf"large.png: holds {MAX_BYTES + 1} bytes; an image has at most {MAX_BYTES}"),
        ("text.png", "image: .*PNG, JPEG, WEBP"),
        ({"bytes": "AAAA"}, "image: .*PNG, JPEG, WEBP"),
        ({"height": 3}, "image: must be an image, its file's name, or a list of them, got None"),
        (7, "image: must be an image, its file's name, or a list of them, got 7"),
        ([uri(RED), 7], "image: must be an image"),
    ],
)
def test_what_is_no_image_is_refused_with_its_column(written, message, tmp_path):
    folders = [tmp_path / "rows", tmp_path / "more"]
    for folder in folders:
        folder.mkdir()
        (folder / "both.png").write_bytes(RED)
    (folders[0] / "large.png").write_bytes(b"x" * (MAX_BYTES + 1))
    (folders[0] / "text.png").write_text("no image")
    searched = folders[:1] if written == "a.png" else folders
    with pytest.raises(ValueError, match=message):
        read_pictures("image", written, searched)


def test_rows_of_the_hub_name_no_files_of_this_machine(tmp_path):
    file = tmp_path / "secret.png"
    file.write_bytes(RED)
    with pytest.raises(ValueError, match=r"there is no file .*secret\.png' in the data set"):
        read_pictures("image", str(file), [])


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([user("What?")], [user([SHOWN, ALSO, text("What?")])]),
        ([user("A <image> or <image>?")], [user([text("A "), SHOWN, text(" or "), ALSO, text("?")])]),
        ([user("<image>"), user("<image>B")], [user([SHOWN]), user([ALSO, text("B")])]),
        (
            [user([{"type": "image"}, text("A"), {"type": "image", "index": None}])],
            [user([SHOWN, text("A"), ALSO])],
        ),
        (
            [user("A"), {"role": "assistant", "content": "an <image>"}, user("B")],
            [user("A"), {"role": "assistant", "content": "an <image>"}, user([SHOWN, ALSO, text("B")])],
        ),
    ],
)
def test_images_stand_where_the_messages_say_and_else_before_the_users_last_text(messages, expected):
    show(messages, [SHOWN, ALSO])
    assert messages == expected


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "image": "red.png"},
        {"type": "image", "url": uri(RED)},
        {"type": "image", "path": "red.png"},
        {"type": "image", "base64": base64.b64encode(RED).decode()},
        {"type": "image_url", "image_url": {"url": "red.png"}},
        {"type": "image_url", "image_url": uri(RED)},
    ],
)
def test_parts_of_messages_may_hold_or_name_their_images(part, tmp_path):
    (tmp_path / "red.png").write_bytes(RED)
    messages = [user("A"), user([text("B"), part])]
    read_own_pictures(messages, [tmp_path])
    assert messages == [user("A"), user([text("B"), SHOWN])]


def test_addresses_in_parts_of_messages_are_refused():
    with pytest.raises(ValueError, match=r"content: https://x.org/a.png: addresses are not fetched"):
        read_own_pictures([user([{"type": "image_url", "image_url": {"url": "https://x.org/a.png"}}])], [])


def test_a_place_for_an_image_needs_a_column_that_has_it(tmp_path):
    row = {"messages": [user([{"type": "image"}, text("A <image>?")])], "answer": "red"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    settings = DataConfig(train=str(tmp_path / "rows.jsonl"), heldout_share=0)
    with pytest.raises(
        InputError, match=r"line 1: the prompt has places for 1 images, .* 0; data.images names the column"
    ):
        open_data(settings)


def test_a_text_may_speak_of_images_where_none_is_shown(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"question": "What is <image>?", "answer": "a mark"}\n')
    settings = DataConfig(train=str(tmp_path / "rows.jsonl"), heldout_share=0)
    (message,) = next(open_data(settings).tasks("train", "dataset")).data["messages"]
    assert message == user("What is <image>?")


def test_a_text_may_speak_of_images_where_parts_have_a_place_for_each(tmp_path):
    part = {"type": "image"}
    messages = [user([{"type": "text", "text": "What does <image> mean in"}, part])]
    show(messages, [image_part(png())])
    kinds = [one["type"] for one in messages[0]["content"]]
    assert (kinds, messages[0]["content"][0]["text"]) == (["text", "image_url"], "What does <image> mean in")
    whole = [
        user([{"type": "text", "text": "<image> again"}, part]),
        {"role": "assistant", "content": "A tag."},
    ]
    show_as_in(whole, messages)
    assert [one["type"] for one in whole[0]["content"]] == ["text", "image_url"]


@pytest.mark.parametrize(("words", "number"), [("<image> <image> <image>", 3), ("<image>", 1)])
def test_as_many_places_as_images_are_needed(words, number):
    with pytest.raises(ValueError, match=f"has places for {number} images, and the row has 2"):
        show([user(words)], [SHOWN, ALSO])


def test_messages_without_a_user_show_no_image():
    with pytest.raises(ValueError, match="no message of the user that could show an image"):
        show([{"role": "system", "content": "s"}], [SHOWN])


def test_a_row_without_an_image_is_shown_as_text():
    messages = [user("What?")]
    show(messages, [])
    assert messages == [user("What?")]


def test_rows_of_a_file_show_the_images_beside_it_and_count_only_words_as_tokens(tmp_path, monkeypatch):
    (tmp_path / "pics").mkdir()
    rows = []
    for number, data in enumerate((RED, BLUE)):
        (tmp_path / f"pics/{number}.png").write_bytes(data)
        rows.append({"question": f"Row {number} <image>?", "picture": f"pics/{number}.png", "answer": "red"})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    counted = []
    monkeypatch.setattr(
        "asyncrl.rows.data.token_counter",
        lambda tokenizer: lambda texts: (counted.extend(texts), [len(one) for one in texts])[1],
    )
    settings = DataConfig(
        train=str(tmp_path / "rows.jsonl"),
        images="picture",
        heldout_share=0,
        shuffle=False,
        max_prompt_tokens=10,
    )
    first, second = (
        task.data["messages"] for task in islice(open_data(settings).tasks("train", "dataset"), 2)
    )
    assert first == [user([text("Row 0 "), SHOWN, text("?")])]
    assert second == [user([text("Row 1 "), ALSO, text("?")])]
    assert counted == ["Row 0 \n\n?", "Row 1 \n\n?"]


def test_a_saved_folder_of_datasets_shows_its_images(tmp_path):
    import datasets

    picture = Image.new("RGB", (4, 3), "red")
    rows = [{"question": "A?", "images": [picture, picture], "answer": "red"}]
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "saved"))
    settings = DataConfig(train=str(tmp_path / "saved"), images="images", heldout_share=0)
    (message,) = next(open_data(settings).tasks("train", "dataset")).data["messages"]
    assert [part["type"] for part in message["content"]] == ["image_url", "image_url", "text"]


def test_a_column_of_images_that_none_is_shown_of_is_said(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"question": "A?", "image": "a.png", "answer": "red"}\n')
    notes = open_data(DataConfig(train=str(tmp_path / "rows.jsonl"), heldout_share=0)).notes
    assert any("no image of image is shown; data.images names such a column" in note for note in notes)
