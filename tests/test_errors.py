from scs_supcon.errors import UserError, did_you_mean


def test_a_user_error_is_a_value_error() -> None:
    assert issubclass(UserError, ValueError)


def test_the_closest_option_is_suggested() -> None:
    assert did_you_mean("temprature", ["beta", "temperature"]) == "; did you mean 'temperature'?"


def test_nothing_is_suggested_if_no_option_is_close() -> None:
    assert did_you_mean("colour", ["beta", "temperature"]) == ""
    assert did_you_mean("colour", []) == ""
