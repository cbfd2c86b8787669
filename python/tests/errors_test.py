"""Errors: their classes, attributes, and that they can be pickled."""

import builtins
import pickle

import pytest

from stagecraft import errors

ALL = [getattr(errors, name) for name in errors.__all__]


def test_bases():
    assert all(issubclass(error, errors.Error) for error in ALL)
    assert issubclass(errors.Error, RuntimeError)
    assert issubclass(errors.ArgumentError, ValueError)
    assert issubclass(errors.ParseError, ValueError)
    assert issubclass(errors.ScheduleError, AssertionError)
    assert issubclass(errors.TimeoutError, builtins.TimeoutError)
    assert issubclass(errors.FileError, OSError)
    assert errors.PipeliningMetadataError is errors.MetadataError


@pytest.mark.parametrize("error", [
    errors.ArgumentError("a"),
    errors.ParseError("line 1, column 2: b", 1, 2),
    errors.ScheduleError("c", ["0F0", "1B0"]),
    errors.StageError("d", 3, 2, 1, "2F1"),
    errors.PeerError("e", 4, "Traceback"),
    errors.TimeoutError("f"),
    errors.FileError("g"),
], ids=lambda error: type(error).__name__)
def test_pickle_keeps_message_and_attributes(error):
    error.add_note("kept")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.args == error.args
    assert vars(again) == vars(error)
