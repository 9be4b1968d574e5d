import json
from pathlib import Path


def read():
    return json.loads(Path("/app/people.json").read_text())


def test_every_person_is_listed_once_and_sorted():
    assert [person["name"] for person in read()] == ["Bo", "Ivo", "Mara", "Tess"]


def test_the_oldest_age_is_kept_as_a_number():
    assert [person["age"] for person in read()] == [7, 19, 33, 54]
