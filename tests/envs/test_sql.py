"""SQL: what a query may do, how results are compared, what the model is told."""

import asyncio
import random
import sqlite3

import pytest

from asyncrl.env.protocol import Action, ToolCall
from asyncrl.envs.sql.data import LEVELS, SCHEMA, make
from asyncrl.envs.sql.database import Database, QueryError
from asyncrl.envs.sql.env import Sql, show
from asyncrl.envs.sql.reward import as_query, as_rows, same_rows
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.types import Task

ENDLESS = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r"


def make_env(seed=0, **config):
    return Sql(Task("t", "sql", seed), **config)


def step(env, *calls, errors=(), content=""):
    tool_calls = tuple(ToolCall(f"call-{i}", name, arguments) for i, (name, arguments) in enumerate(calls))
    return asyncio.run(env.step(Action(content, tool_calls, errors)))


@pytest.fixture
def database():
    connection = sqlite3.connect(":memory:")
    connection.executescript("CREATE TABLE t (a, b); INSERT INTO t VALUES (1, 'x'), (2, 'y'), (3, NULL)")
    opened = Database(connection.serialize())
    connection.close()
    yield opened
    opened.close()


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES (4, 'z')",
        "DELETE FROM t",
        "DROP TABLE t",
        "CREATE TEMP TABLE u (a)",
        "ATTACH '/etc/passwd' AS p",
        "PRAGMA query_only = OFF",
        "SELECT * FROM pragma_table_info('t')",
        "VACUUM INTO 'copy.sqlite'",
        "SELECT load_extension('evil')",
        "SELECT random()",
        "BEGIN",
        "SELECT 1; DELETE FROM t",
    ],
)
def test_anything_but_reading_is_refused(database, sql):
    with pytest.raises(QueryError):
        database.query(sql, 10, 1.0)
    assert database.query("SELECT count(*) FROM t", 10, 1.0).rows == [(3,)]


@pytest.mark.parametrize(
    "sql",
    [
        ENDLESS,
        "SELECT count(*) FROM t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t, t",
        "SELECT replace(hex(zeroblob(100000000)), '0', 'aaaaaaaaaa')",
        "SELECT " + "(" * 2000 + "1" + ")" * 2000,
        "SELECT 'a' LIKE '" + "%a" * 1000 + "'",
        "",
        "SELECT \0",
        "SELECT '\ud800'",
        "SELECT 1 -- " + "x" * 5000,
    ],
)
def test_costly_and_odd_queries_end_in_an_error(database, sql):
    with pytest.raises(QueryError):
        database.query(sql, 10, 0.2)


def test_a_query_that_runs_too_long_is_told_so(database):
    with pytest.raises(QueryError, match=r"the query ran longer than 0.1 s"):
        database.query(ENDLESS, 10, 0.1)


def test_rows_beyond_the_bound_are_announced(database):
    result = database.query("SELECT a, b FROM t ORDER BY a", 2, 1.0)
    assert show(result) == "a | b\n1 | x\n2 | y\n... more rows"
    assert show(database.query("SELECT b FROM t WHERE a = 3", 2, 1.0)) == "b\nNULL"
    assert show(database.query("SELECT b FROM t WHERE a = 9", 2, 1.0)) == "b\n(no rows)"


def test_rows_are_compared_by_value_and_in_order_only_where_asked():
    gold = [("Ada", 3), ("Ben", 2.5)]
    assert same_rows([("Ben", 2.5), ("Ada", 3)], gold, ordered=False)
    assert not same_rows([("Ben", 2.5), ("Ada", 3)], gold, ordered=True)
    assert same_rows(as_rows("ada | 3.0\nBen | 2.50"), gold, ordered=True)
    assert not same_rows([*gold, ("Ada", 3)], gold, ordered=False)
    assert not same_rows([(3, "Ada"), (2.5, "Ben")], gold, ordered=False)
    assert same_rows([(None,)], as_rows("NULL"), ordered=False)
    assert not same_rows([], [("",)], ordered=False)


def test_a_query_is_told_from_values():
    assert as_query("I think\n```sql\nSELECT 1;\n```") == "SELECT 1"
    assert as_query(" with x as (select 1) select * from x ") == "with x as (select 1) select * from x"
    assert as_query("Selma, 3") == ""


def test_calls_of_one_turn_are_answered_in_order():
    env = make_env()
    answer = step(
        env,
        ("schema", {}),
        ("query", {"sql": "SELECT 6 * 7 AS n"}),
        ("query", {"sql": "SELEC"}),
        errors=("no JSON",),
    )
    assert [m["content"] for m in answer.messages] == [
        SCHEMA.strip(),
        "n\n42",
        'error: near "SELEC": syntax error',
        "error: no JSON",
    ]
    assert answer.components == {"calls": 3.0, "errors": 2.0}
    env.close()


def test_the_final_answer_is_values_or_a_query():
    for seed in range(10):
        env = make_env(seed, level=2, time_limit_s=0.1)
        values = "\n".join(" | ".join(map(str, row)) for row in env.problem.rows)
        for content, reward in ((values, 1.0), (env.problem.sql, 1.0), ("SELECT 12345", 0.0), ("", 0.0)):
            last = step(env, content=content)
            assert (last.reward, last.done, last.success) == (reward, True, reward == 1.0), content
        assert step(env, content=f"{env.problem.sql} UNION ALL SELECT 1").reward == 0.0
        assert step(env, content=ENDLESS).reward == 0.0
        env.close()


def test_the_turns_run_out():
    env = make_env(max_turns=2)
    assert not step(env, ("schema", {})).done
    last = step(env, ("schema", {}))
    assert (last.done, last.success, last.messages) == (True, False, [])
    env.close()


def test_the_database_is_gone_when_the_episode_is(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    env = make_env()
    assert len(list(tmp_path.iterdir())) == 1
    env.close()
    assert list(tmp_path.iterdir()) == []


def test_every_question_has_an_answer_and_orders_only_what_it_says():
    rng = random.Random(0)
    for level in LEVELS:
        for _ in range(30):
            problem = make(rng, level)
            assert problem.rows and problem.ordered == ("first, " in problem.question)


def test_no_problem_stands_in_both_splits():
    for level in LEVELS:
        train = {make_env(seed, level=level).problem_key() for seed in range(0, 200, 2)}
        heldout = {make_env(seed, level=level).problem_key() for seed in range(1, 201, 2)}
        assert len(train) > 50 and not train & heldout


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match=r"time_limit_s: must be from 0.05 to 30, got 0"):
        make_env(time_limit_s=0)
    with pytest.raises(ValueError, match="max_rows: must be an integer from 1 to 1000, got 0"):
        make_env(max_rows=0)


def test_sql_passes_every_check():
    assert [f for f in check_env("sql") if not f.ok] == []
