"""An environment's failure says where in its code it was raised."""

from asyncrl.env.hosting.failures import sort_failure


def step(seen):
    return seen["goal"]


def test_the_innermost_calls_of_an_environment_are_in_its_failure():
    try:
        step({})
    except KeyError as error:
        told = str(sort_failure("maze", "step", error)).splitlines()
    assert told[0] == "environment 'maze': step raised KeyError: 'goal'"
    place = [line.strip() for line in told].index(
        f'File "{__file__}", line {step.__code__.co_firstlineno + 1}, in step'
    )
    assert told[place + 1].strip() == 'return seen["goal"]'


def test_an_error_that_was_never_raised_has_no_place():
    assert str(sort_failure("maze", "reset", ValueError("no level"))) == (
        "environment 'maze': reset raised ValueError: no level"
    )
