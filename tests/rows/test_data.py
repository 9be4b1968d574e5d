"""Which rows are trained on and which are held out, in which order, and what is refused before anything starts."""

import json
from collections import Counter
from itertools import islice

import pytest

from asyncrl.config_sections import DataConfig, DataSource
from asyncrl.errors import ConfigError, InputError
from asyncrl.rewards.golds import gold_check
from asyncrl.rows.data import open_data


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def numbered(path, numbers):
    return written(path, [{"question": f"What is {n}?", "answer": n} for n in numbers])


def played(data, number, split="train"):
    return [task.data["answer"] for task in islice(data.tasks(split, "dataset"), number)]


@pytest.fixture
def files(tmp_path):
    return numbered(tmp_path / "a.jsonl", range(20)), numbered(tmp_path / "b.jsonl", range(100, 105))


def test_a_row_becomes_a_task_with_its_columns_its_answer_and_its_prompt(tmp_path):
    rows = [{"q": "1 + 1?", "gold": "2", "level": "easy", "id": None}]
    path = written(tmp_path / "a.jsonl", rows * 2)
    data = open_data(
        DataConfig(
            train=path, heldout_share=0, prompt="Say: {q}", system="Short.", answer="gold", shuffle=False
        )
    )
    task = next(data.tasks("train", "dataset"))
    assert (task.id, task.env, task.split, task.seed) == ("a.jsonl:0", "dataset", "train", 0)
    messages = [{"role": "system", "content": "Short."}, {"role": "user", "content": "Say: 1 + 1?"}]
    assert task.data == {"q": "1 + 1?", "gold": "2", "level": "easy", "answer": "2", "messages": messages}


def test_every_row_is_played_once_an_epoch_and_epochs_have_orders_of_their_own(files):
    def order(seed=0, **settings):
        data = open_data(DataConfig(train=files[0], heldout=files[1], seed=seed, **settings))
        return played(data, 60)

    epochs = [order()[start : start + 20] for start in (0, 20, 40)]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert order() == order()
    assert order(seed=1) != order()
    assert order(shuffle=False) == [*range(20)] * 3
    assert order(limit=3, shuffle=False)[:6] == [0, 1, 2, 0, 1, 2]


def test_held_out_rows_are_played_once_and_are_those_of_their_own_source(files):
    data = open_data(DataConfig(train=files[0], heldout=files[1]))
    assert sorted(played(data, 99, "heldout")) == [100, 101, 102, 103, 104]
    assert {task.split for task in data.tasks("heldout", "dataset")} == {"heldout"}
    assert (data.size("train"), data.size("heldout")) == (20, 5)
    assert data.notes[0] == "20 rows to train on, 5 held out"


def test_without_held_out_rows_a_share_of_the_prompts_is_held_out_and_stays_so(tmp_path):
    def split(numbers, **settings):
        path = numbered(tmp_path / "a.jsonl", numbers)
        data = open_data(DataConfig(train=path, **settings))
        return set(played(data, data.size("train"))), set(played(data, 9999, "heldout"))

    train, heldout = split(range(400), heldout_share=0.1)
    assert not train & heldout
    assert train | heldout == set(range(400))
    assert 20 <= len(heldout) <= 65
    # Rows that are added change nothing about those that were there.
    more_train, more_heldout = split(range(500), heldout_share=0.1)
    assert heldout <= more_heldout
    assert train <= more_train
    assert split(range(400), heldout_share=0.1, seed=3)[1] != heldout
    # All rows with one prompt are on one side, and each prompt is evaluated once.
    repeated_train, repeated = split([*range(400), *range(400)], heldout_share=0.1)
    assert (repeated_train, repeated) == (train, heldout)
    # Of a few rows at least one is held out, and at least one is left.
    for seed in range(20):
        few_train, few = split(range(2), heldout_share=0.01, seed=seed)
        assert (len(few_train), len(few)) == (1, 1)
    assert split(range(5), heldout_share=0) == (set(range(5)), set())


def test_a_held_out_prompt_among_the_training_rows_is_refused_or_left_out(tmp_path):
    train = numbered(tmp_path / "train.jsonl", range(6))
    heldout = written(tmp_path / "test.jsonl", [{"question": "What  is\n3?", "answer": 3}])
    with pytest.raises(
        ConfigError,
        match=r"1 training rows have the prompt of a held-out row: .*train\.jsonl, line 4, and .*test\.jsonl, line 1\.",
    ):
        open_data(DataConfig(train=train, heldout=heldout))
    data = open_data(DataConfig(train=train, heldout=heldout, dedupe=True))
    assert sorted(played(data, 5)) == [0, 1, 2, 4, 5]
    assert played(data, 9, "heldout") == [3]


def test_rows_with_the_prompt_of_an_earlier_one_are_left_out_on_request(tmp_path):
    path = written(
        tmp_path / "a.jsonl", [{"question": q, "answer": n} for n, q in enumerate(["x", "y", " x", "y", "z"])]
    )
    data = open_data(DataConfig(train=path, heldout_share=0, dedupe=True))
    assert sorted(played(data, data.size("train"))) == [0, 1, 4]
    assert "data.dedupe: 2 rows have the prompt of an earlier one and are left out" in data.notes


def test_sources_are_mixed_whole_or_by_weight(files):
    whole = open_data(DataConfig(train=list(files), heldout_share=0))
    assert sorted(played(whole, 25)) == [*range(20), *range(100, 105)]
    weighted = [DataSource(path=files[0], weight=1.0), DataSource(path=files[1], weight=3.0)]
    data = open_data(DataConfig(train=weighted, heldout_share=0))
    drawn = played(data, 4000)
    share = sum(n >= 100 for n in drawn) / 4000
    assert 0.7 < share < 0.8
    # Each source has epochs of its own.
    second = Counter(n for n in drawn if n >= 100)
    assert max(second.values()) - min(second.values()) <= 1
    assert played(data, 4000) == drawn
    ids = {task.id for task in islice(data.tasks("train", "dataset"), 200)}
    assert "a.jsonl:0" in ids
    assert "1/b.jsonl:0" in ids
    with pytest.raises(ConfigError, match=r"give every source a weight, or none; .*b\.jsonl' has none"):
        open_data(DataConfig(train=[weighted[0], files[1]]))


def test_files_of_one_name_in_two_folders_have_rows_of_their_own(tmp_path):
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
    paths = [numbered(tmp_path / "x" / "a.jsonl", [1]), numbered(tmp_path / "y" / "a.jsonl", [2])]
    data = open_data(DataConfig(train=paths, heldout_share=0))
    assert {task.id for task in islice(data.tasks("train", "dataset"), 2)} == {"a.jsonl:0", "1/a.jsonl:0"}


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        ([{"question": "q", "answer": 1}, {"question": "r"}], {}, "line 2: column 'answer' is missing; expected: "),
        ([{"question": "q", "answer": 1}, {"question": "", "answer": 2}], {}, r"line 2: the prompt is empty; expected"),
        ([{"question": "q", "answer": 1}, {"question": "r", "answer": None}], {}, r"line 2: column 'answer' is"),
        ([{"question": "q", "answer": float("nan")}], {}, r"line 1: answer: is not a number \(NaN\)"),
        ([{"q": "a", "x": {"y": 1}}, {"q": "b", "x": {}}], {"prompt": "q", "answer": "{x.y}"}, r"x has no field 'y'"),
        ([{"question": "q", "choices": ["a"], "answer": 3}], {}, r"line 1: the answer is choice 3 of 1"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_used_is_refused_with_file_row_column_and_what_was_expected(
    tmp_path, rows, settings, message
):
    with pytest.raises(InputError, match=message):
        open_data(DataConfig(train=written(tmp_path / "a.jsonl", rows), **settings))


def test_a_split_without_rows_is_refused(tmp_path, files):
    same = written(tmp_path / "same.jsonl", [{"question": "q", "answer": 1}] * 3)
    with pytest.raises(ConfigError, match=r"data\.heldout_share: 0\.05 of 1 prompt leaves none to train on"):
        open_data(DataConfig(train=same))
    left = r"data\.train: .*same\.jsonl: none of its 3 rows is left to train on: "
    with pytest.raises(ConfigError, match=left + r"3 have a prompt that is held out \(data\.heldout, "):
        open_data(DataConfig(train=[files[0], same], heldout=same, dedupe=True))
    with pytest.raises(ConfigError, match=left + r"3 have the prompt of an earlier row \(data\.dedupe\)$"):
        open_data(DataConfig(train=[files[0], same, same], heldout_share=0.01, dedupe=True))
    with pytest.raises(
        ConfigError,
        match=r"^data\.reward: 'math' can judge none of these 3 rows: .*same\.jsonl, line 1: odd$",
    ):
        open_data(
            DataConfig(train=same, heldout_share=0, reward="math"), golds=lambda reward: lambda row: "odd"
        )
    with pytest.raises(ConfigError, match=r"data\.train: missing; name a file"):
        open_data(DataConfig())
    with pytest.raises(ConfigError, match=r"data\.train: missing; 'math500' is for evaluation"):
        open_data(DataConfig(set="math500"))


def test_columns_that_nothing_uses_are_said_once_and_parts_of_a_question_are_said_to_be(tmp_path):
    rows = [{"q": "How many?", "Body": "Jo has 3.", "a": 3, "id": n} for n in range(3)]
    path = written(tmp_path / "x.jsonl", rows)
    data = open_data(DataConfig(train=path, heldout_share=0, prompt="{q}", answer="a"))
    (said,) = [note for note in data.notes if path in note]
    assert said.endswith("only given to rewards: Body, id; Body often is part of the question")


def test_a_file_of_a_known_set_needs_nothing_else(tmp_path):
    rows = [{"question": f"How many are {n}?", "answer": f"Count.\n#### {n}"} for n in range(3)]
    path = written(tmp_path / "gsm8k_small.jsonl", rows)
    task = next(open_data(DataConfig(train=path, heldout_share=0, shuffle=False)).tasks("train", "dataset"))
    assert task.data["answer"] == "Count.\n#### 0"
    assert [message["role"] for message in task.data["messages"]] == ["system", "user"]
    svamp = [
        {"Body": "Jo has 3.", "Question": "How many?", "Answer": 3.0, "Type": "x", "ID": "1", "Equation": "3"}
    ]
    path = written(tmp_path / "svamp.json", svamp)
    data = open_data(DataConfig(train=path, heldout_share=0))
    assert next(data.tasks("train", "dataset")).data["messages"][1]["content"] == "Jo has 3. How many?"
    assert not any("only given to rewards" in note for note in data.notes)
    with pytest.raises(
        ConfigError, match=r"no column 'question'.* It was taken for 'gsm8k', by its name: give data\.prompt"
    ):
        open_data(DataConfig(train=written(tmp_path / "gsm8k.jsonl", [{"text": "q", "label": 1}])))
    other = DataConfig(
        train=written(tmp_path / "gsm8k.jsonl", [{"problem": "q", "answer": 1}]), set="none", heldout_share=0
    )
    assert next(open_data(other).tasks("train", "dataset")).data["messages"] == [
        {"role": "user", "content": "q"}
    ]


def test_a_format_with_a_reader_gives_its_own_tasks(tmp_path):
    rows = [
        {"prompt": f"def f{n}():\n", "entry_point": f"f{n}", "test": "def check(c): assert c()"}
        for n in range(2)
    ]
    path = written(tmp_path / "humaneval.jsonl", rows)

    def reader(name):
        assert name == "humaneval"
        return lambda row: {"statement": row["prompt"], "check": row["test"]}

    data = open_data(DataConfig(train=path, heldout_share=0, shuffle=False), reader=reader)
    assert next(data.tasks("train", "program")).data == {
        "statement": "def f0():\n",
        "check": "def check(c): assert c()",
    }
    broken = DataConfig(train=written(tmp_path / "mbpp.jsonl", [{"x": 1}]))
    with pytest.raises(
        InputError, match=r"mbpp\.jsonl, line 1: column 'prompt' is missing; expected: a row of mbpp"
    ):
        open_data(broken, reader=lambda name: lambda row: {"statement": row["prompt"]})


def test_rows_that_no_answer_can_be_right_for_are_left_out_and_said(tmp_path):
    rows = [{"question": f"q{n}", "answer": n} for n in range(8)]
    path = written(tmp_path / "a.jsonl", rows)

    def golds(spec):
        assert spec == "math"
        return lambda row: "is even" if row["answer"] % 2 == 0 else None

    settings = {"train": path, "reward": "math"}
    data = open_data(DataConfig(heldout_share=0, **settings), golds=golds)
    assert sorted(played(data, data.size("train"))) == [1, 3, 5, 7]
    assert any(
        note.endswith(f"such as {path}, line 1: is even") and "4 rows have" in note for note in data.notes
    )
    data = open_data(DataConfig(heldout_share=0.5, **settings), golds=golds)
    assert sorted(played(data, data.size("train")) + played(data, 9, "heldout")) == [1, 3, 5, 7]


def test_long_prompts_are_left_out_by_the_models_own_tokens(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    (tmp_path / "model").mkdir()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    rows = [{"question": "word " * n, "answer": n} for n in range(1, 9)]
    settings = DataConfig(train=written(tmp_path / "a.jsonl", rows), heldout_share=0, max_prompt_tokens=5)
    data = open_data(settings, str(tmp_path / "model"))
    assert sorted(played(data, data.size("train"))) == [1, 2, 3, 4, 5]
    assert any("3 rows of" in note for note in data.notes)
    for model, why in (
        ("sft", "must be 0 for model.path='sft'"),
        (str(tmp_path), "has no tokenizer.json to count by"),
    ):
        with pytest.raises(ConfigError, match=why):
            open_data(settings, model)


def test_a_digest_changes_with_the_rows(files, tmp_path):
    def digest(**settings):
        return open_data(DataConfig(train=files[0], **settings)).digest

    assert digest() == digest()
    assert len({digest(), digest(limit=3), digest(heldout=files[1]), digest(seed=1)}) == 4


def test_a_conversation_that_ends_with_an_answer_has_one(tmp_path):
    talk = [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": "5"}]
    path = written(tmp_path / "x.jsonl", [{"messages": talk}])
    data = open_data(DataConfig(train=path, heldout_share=0))
    assert next(data.tasks("train", "dataset")).data["answer"] == "5"
    assert not any("no column with an answer" in note for note in data.notes)
    path = written(tmp_path / "y.jsonl", [{"messages": talk[:1]}])
    assert any(
        "no column with an answer" in note
        for note in open_data(DataConfig(train=path, heldout_share=0)).notes
    )


def test_the_same_rows_in_both_splits_are_refused_with_what_to_do(files):
    with pytest.raises(
        ConfigError, match=r"20 training rows .* These are all there are: leave data\.heldout out"
    ):
        open_data(DataConfig(train=files[0], heldout=files[0]))


def test_rows_that_a_reward_cannot_judge_name_the_setting_that_may_help(tmp_path):
    path = written(tmp_path / "x.jsonl", [{"question": "q", "gold": 5}])
    with pytest.raises(
        ConfigError, match=r"^data\.reward: 'math' .* none of these 1 rows: .*line 1: no column answer"
    ):
        open_data(DataConfig(train=path, heldout_share=0, reward="math"), golds=gold_check)
    with pytest.raises(ConfigError, match=r"; data\.answer names the column with the right answer$"):
        open_data(DataConfig(train=path, heldout_share=0, reward="exact"), golds=gold_check)
    assert open_data(DataConfig(train=path, heldout_share=0, reward="math", answer="gold"), golds=gold_check)


def test_a_system_message_in_a_column_that_is_not_shown_is_said(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"system": "Be brief.", "question": "q", "answer": "a"}\n')
    shown = "column 'system' is not shown; data.system=\"{system}\" makes it the system message"
    found = {
        given: [
            shown in note
            for note in open_data(DataConfig(train=str(file), heldout_share=0, system=given)).notes
        ]
        for given in (None, "{system}")
    }
    assert any(found[None]) and not any(found["{system}"])
