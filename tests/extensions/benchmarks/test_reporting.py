"""What an evaluation says of its scores."""

from asyncrl.extensions.benchmarks.reporting import any_under


def test_checkpoints_below_the_limit_are_named(capsys):
    assert any_under({"early": 0.5, "late": 0.75, "broken": None}, 0.75)
    assert capsys.readouterr().err == (
        "early: 0.500, below --fail-under 0.75\nbroken: no sample counts, below --fail-under 0.75\n"
    )
    assert not any_under({"late": 0.75}, 0.75)
    assert capsys.readouterr().err == ""
