"""The table of problems: each type has one status, one title and one entry."""

from collections import Counter
from http import HTTPStatus

from georesolve.io import errors as io_errors
from georesolve.service import errors
from georesolve.service.errors import BY_TYPE, OWN_TYPES, Problem


def subclasses(kind):
    """A class and all classes that derive from it."""
    return {kind}.union(*(subclasses(one) for one in kind.__subclasses__()))


def test_every_problem_has_a_type_of_its_own():
    kinds = subclasses(Problem)
    counts = Counter(kind.type for kind in kinds)
    assert {type: count for type, count in counts.items() if count > 1} == {}
    assert {kind.type: kind for kind in kinds} == BY_TYPE


def test_statuses_of_the_framework_agree_with_the_table():
    """Handlers make a type of the phrase of any other status: see `install_error_handlers`."""
    for status in HTTPStatus:
        type = OWN_TYPES + status.phrase.lower().replace(" ", "-")
        assert type not in BY_TYPE or BY_TYPE[type].status == status


def test_every_refusal_of_a_table_or_option_has_a_problem():
    for kind in subclasses(io_errors.Refused) - subclasses(Problem) - {io_errors.Refused}:
        if kind.__module__ == io_errors.__name__:
            assert type(errors.problem_of(kind("no"))) is not Problem
