r"""Units in answers: what names one is right with and without it, another unit or number is wrong, and letters that are
variables stay variables."""

import json
import os
from pathlib import Path

import pytest

from asyncrl.extensions.answer_rewards.equality import never_right, plan
from asyncrl.extensions.answer_rewards.gold import final_answer
from asyncrl.extensions.answer_rewards.grader import GRADERS

DATA = Path(os.environ.get("ASYNCRL_TEST_DATA", Path(__file__).parents[4] / "shared" / "data"))

RIGHT = [
    ("5 m", "5"),
    ("5 m", "5 m"),
    ("5 m", "5m"),
    ("5 m", r"5\text{ m}"),
    ("5 m", r"5\text{m}"),
    ("5 m", r"5\ \mathrm{m}"),
    ("5 m", "5 meters"),
    ("5 m", "500 cm"),
    (r"5\text{ m}", "5"),
    (r"5\text{ m}", "5m"),
    (r"5\text{ m}", "5 meters"),
    (r"5\text{m}", "5"),
    (r"5\mbox{ m}", "5"),
    (r"5 \, \text{m}", "5~m"),
    (r"5\text{ m}", r"\frac{10}{2} m"),
    (r"5\text{ m}", r"\frac{10}{2} \text{ m}"),
    (r"\sqrt{2}\text{ m}", r"\sqrt{2}"),
    (r"\sqrt{2}\text{ m}", r"\sqrt{2} m"),
    (r"\sqrt{2}\text{ m}", r"\sqrt{2} \text{ m}"),
    (r"\sqrt{2}\text{ m}", r"\sqrt{2}\text{ meters}"),
    (r"\frac{\pi}{2}\text{ m}", r"\frac{\pi}{2}"),
    (r"10\pi\text{ cm}", r"10\pi"),
    (r"10\pi\text{ cm}^2", r"10\pi"),
    (r"10\pi", r"10\pi\text{ cm}^2"),
    (r"10\pi", r"10\pi \text{ square inches}"),
    (r"2\sqrt{3}\text{ in}", r"2\sqrt{3}"),
    (r"2\sqrt{3}", r"2\sqrt{3}\text{ units}"),
    (r"2\sqrt{3}", r"2\sqrt{3} m"),
    ("12 cm^2", "12"),
    ("12 cm^2", r"12\text{ cm}^2"),
    ("12 cm^2", r"12 \text{ square centimeters}"),
    ("12 cm^2", r"12\,\mathrm{cm}^{2}"),
    ("12", "12 cm^2"),
    ("12", r"12 \text{ cm}^2"),
    ("12", r"12\text{ sq cm}"),
    ("$5", "5"),
    ("5", "$5"),
    ("5", r"\$5"),
    ("5", r"\$5.00"),
    ("5", "5 dollars"),
    ("5", r"5 \text{ dollars}"),
    (r"\$18.90", "18.90"),
    ("18.90", r"\$18.90"),
    ("1.5", "1.50 dollars"),
    ("$1,000", "1000"),
    ("1000", r"\$1{,}000"),
    ("50%", r"50\%"),
    ("50%", "50"),
    ("50", r"50\%"),
    (r"50\%", "50 percent"),
    ("3 hours", "3"),
    ("3 hours", r"3\text{ hours}"),
    ("3 hours", "3 h"),
    ("3 hours", "180 minutes"),
    ("3", "3 hours"),
    ("3", r"3\text{ hours}"),
    ("3", "3 hrs"),
    ("3", "3 h"),
    ("3", "3 m"),
    ("3", r"3\text{ m}"),
    ("3", "3 s"),
    ("3", r"3\text{ s}"),
    ("3", r"3\,\text{g}"),
    ("3", "3 L"),
    ("3", "3 N"),
    ("3", "3 km/h"),
    ("3", "3 m/s"),
    ("3", "3 m/s^2"),
    ("3", r"3\text{ m/s}^2"),
    (r"9.8\text{ m/s}^2", "9.8"),
    ("5m", "5m"),
    ("5m", "5 m"),
    ("5m", r"m\cdot 5"),
    ("5m", r"5\cdot m"),
    ("5m", r"5 \times m"),
    ("2x", "2x"),
    ("2x", "2 x"),
    ("2 x", "2x"),
    ("-3y", "-3y"),
    ("6t", "6t"),
    ("0.5x", r"\frac{1}{2}x"),
    ("0.5x", r"\frac{x}{2}"),
    ("5mn", "5mn"),
    ("3m^2", "3m^2"),
    ("3m^2", "3 m^2"),
    ("5m + 2", "2 + 5m"),
    (r"12\pi m", r"12\pi m"),
    ("5i", "5i"),
    ("2e", "2e"),
    ("7", "7 apples"),
    ("7 apples", "7"),
    ("18", "18 eggs per day"),
    ("18", "$18 every day"),
    ("64", "64 glasses"),
    ("540", "540 meters"),
    ("20", "20 cups of feed"),
    ("3/4", "3/4 cup"),
    (r"6\text{ p.m.}", "6 p.m."),
    ("10:30", "10:30"),
    (r"90^\circ", "90"),
    ("90", r"90^\circ"),
    ("90", "90 degrees"),
    ("60", r"60\text{ mph}"),
    (r"30\text{ miles per hour}", "30"),
    ("2:3", "2:3"),
    (r"1.2\times 10^5\text{ J}", "1.2e5"),
    (r"4\frac{1}{2}\text{ feet}", "4.5"),
    ("5 m^2", "5"),
    (r"5\text{ m}^2", r"5\text{ m}^2"),
    ("0.5 kg", "500 g"),
    (r"5\text{ m}", r"x = 5\text{ m}"),
    (r"5\text{ m}", "x = 5"),
    (r"12\pi m", r"12\pi"),
    (r"\frac{\pi}{2}\text{ m}", r"50\pi\text{ cm}"),
    ("$5", "500 cents"),
    (r"\frac{1}{2}mg", r"\frac{mg}{2}"),
    ("ab + c", "c + ab"),
    ("5 s", "5s"),
    ("5", "5th"),
    ("500mg", "0.5 g"),
    ("5kg", "5"),
    ("9", "9apples"),
    ("7", "7pm"),
    ("7", "7 PM"),
    ("7 p.m.", "7 pm"),
    ("8:00 p.m.", "8:00 p.m."),
    (r"7\text{ yd}", r"21\text{ ft}"),
    ("5", "x = 5 m"),
    ("5", r"x = 5\text{ m}"),
]
WRONG = [
    ("5 m", "6"),
    ("5 m", "6 m"),
    ("5 m", "5 cm"),
    ("5 m", "5 kg"),
    ("5 m", "5n"),
    ("5m", "5"),
    ("5m", "6m"),
    ("5m", "5n"),
    ("5m", "5m^2"),
    ("5m", "m"),
    ("5", "5x"),
    ("5", "5y"),
    ("5", "5n"),
    ("5", "5m"),
    ("5x", "5"),
    ("5x", "5y"),
    ("2 x", "2"),
    ("2m", "2"),
    ("3t", "3"),
    ("5g", "5"),
    ("5s", "5"),
    ("6h", "6"),
    ("12 cm^2", "12 cm"),
    ("12 cm^2", "12 cm^3"),
    ("12 cm^2", "144"),
    ("50%", "5"),
    ("50", "0.5"),
    (r"50\%", "0.05"),
    ("$5", "6"),
    ("$5", "5 cents"),
    ("3 hours", "3 minutes"),
    ("3 hours", "3 days"),
    ("3 hours", "30"),
    (r"10\pi", "10"),
    (r"10\pi\text{ cm}", "10"),
    (r"\sqrt{2}\text{ m}", "2"),
    (r"\sqrt{2}\text{ m}", r"\sqrt{3}\text{ m}"),
    (r"\sqrt{2}\text{ m}", r"2\sqrt{2}\text{ m}"),
    ("3m^2", "3"),
    ("3 m/s", "3 km/h"),
    ("7 apples", "8 apples"),
    ("5m + 2", "5m"),
    ("5m + 2", "7m"),
    ("5m+2", "5n+2"),
    ("2e", "2"),
    ("5i", "5"),
    ("x^2 + 3 t", "x^2 + 3"),
    ("x^2 + 3t", "x^2 + 3"),
    ("ab + c", "ab"),
    ("2 + 5m", "7"),
    ("3ab", "3"),
    ("2bc", "2"),
    (r"4\sqrt{2}x s", r"4\sqrt{2}x"),
    (r"10\pi\text{ cm}", r"10\pi\text{ m}"),
    (r"\sqrt{2}\text{ hours}", r"\sqrt{2}\text{ minutes}"),
    (r"\frac{1}{2}mg", r"\frac{1}{2}"),
    ("$5", "500"),
    ("7 a.m.", "7 p.m."),
    ("7 pm", "8 pm"),
    (r"\frac{3}{2}d", r"\frac{3}{2}"),
]


@pytest.mark.parametrize(("gold", "answer"), RIGHT)
def test_an_answer_with_its_unit_or_without_is_right(gold, answer):
    assert GRADERS.equal(gold, answer) is True


@pytest.mark.parametrize(("gold", "answer"), WRONG)
def test_another_unit_number_or_variable_is_wrong(gold, answer):
    assert GRADERS.equal(gold, answer) is False


def published_golds():
    for name in ("gsm8k_test.jsonl", "gsm8k_train.jsonl"):
        for line in (DATA / name).read_text().splitlines():
            yield final_answer(json.loads(line)["answer"])
    for line in (DATA / "svamp.jsonl").read_text().splitlines():
        yield final_answer(json.loads(line)["Answer"])


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the published files")
@pytest.mark.parametrize(
    "form", [r"\${}", r"{}\text{{ m}}", "{} dollars", "{}.", r"\text{{{}}}", "${}$", "{} eggs per day"]
)
def test_every_gold_of_gsm8k_and_svamp_is_right_in_the_forms_that_policies_write(form):
    golds = set(published_golds())
    assert len(golds) > 1000
    assert [gold for gold in golds if plan(gold, form.format(gold)) is not True] == []


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the published files")
@pytest.mark.parametrize("form", ["1{}", "{}1", "{}x", "{}ab", "{} + 3t"])
def test_no_gold_of_gsm8k_and_svamp_is_matched_by_another_number_or_a_product(form):
    assert [gold for gold in set(published_golds()) if plan(gold, form.format(gold)) is True] == []


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the published files")
def test_no_gold_of_gsm8k_and_svamp_is_one_that_nothing_can_match():
    assert [gold for gold in set(published_golds()) if never_right(gold)] == []
