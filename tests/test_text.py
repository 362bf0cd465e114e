"""Numbers, losses and names as text, and text made safe to show."""

from __future__ import annotations

import json
import math

from mhsh.text import (
    count,
    duration,
    format_interval,
    format_loss,
    format_names,
    format_values,
    number_duplicates,
    quantity,
    sanitize,
    shorten_all,
    timing,
    to_json,
)


def test_numbers_in_few_digits() -> None:
    written = {
        None: "not recorded",
        0: "0",
        99_999: "99,999",
        512_000: "512k",
        999_960: "1.00M",
        99_960_000: "100M",
        2.1e15: "2.10P",
    }
    assert {number: count(number) for number in written} == written
    written = {
        None: "not recorded",
        48.24: "48.2 s",
        59.96: "1 min 00 s",
        185: "3 min 05 s",
        3599.7: "1 h 00 min",
        7620: "2 h 07 min",
    }
    assert {seconds: duration(seconds) for seconds in written} == written
    written = {123.4: "123 s", 1.234: "1.23 s", 0.0456: "45.6 ms", 7.89e-4: "789 us", 5e-9: "5.00 ns"}
    assert {seconds: timing(seconds) for seconds in written} == written
    written = {
        None: "",
        0: "",
        12: "12.0 B",
        1.5e4: "15.0 kB",
        2.684e8: "268 MB",
        9.64e9: "9.64 GB",
        7.5e14: "750 TB",
        9.996e8: "1.00 GB",
    }
    assert {number: quantity(number, "B") for number in written} == written


def test_loss() -> None:
    assert [format_loss(value) for value in (None, 2.60349, math.nan)] == ["not recorded", "2.603", "not finite"]
    assert [format_loss(value) for value in (0.0, 2.34e-5, -4e-4, 0.002, 2e12)] == [
        "0.000",
        "2.34e-05",
        "-0.0004",
        "0.002",
        "2e+12",
    ]
    assert format_interval(-0.02, 0.00004) == "\u22120.020 to +4e-05"
    assert format_interval(-math.inf, 0.0) == "up to +0.000"


def test_values_are_short_where_that_keeps_them_apart() -> None:
    one, other = "8d09aff3f1beff85" * 4, "8d09aff3f1beff85" * 3 + "0" * 16
    assert format_values([one, None, 351944, True, 3.2877502355752775]) == [
        "8d09aff3",
        "not recorded",
        "351,944",
        "true",
        "3.28775",
    ]
    assert format_values([one, other]) == [one, other]
    assert format_values([0.1, 0.10000000001]) == ["0.1", "0.10000000001"]
    assert format_values([{"kind": "cpu", "count": 1}, [1, 2]]) == ["count 1, kind cpu", "[1, 2]"]


def test_many_names_are_counted() -> None:
    assert format_names(["a", "b", "c", "d"]) == "a, b, c and d"
    assert format_names(list("abcdef")) == "a, b, c and 3 others"


def test_equal_names_are_numbered() -> None:
    assert number_duplicates(["a", "b", "a", "a (2)", "a"]) == ["a", "b", "a (2)", "a (2) (2)", "a (3)"]


def test_sanitize_disarms_terminals_and_direction_overrides() -> None:
    assert sanitize("a\x1b[2J\u202eb\udc80\nc") == "a\ufffd[2J\ufffdb\ufffd c"


def test_names_that_are_too_long_leave_out_what_all_have() -> None:
    swept = [f"24x{heads} admin, learning_rate {rate}, warmup_steps 10" for heads in (1, 2) for rate in (0.001, 0.002)]
    assert shorten_all(swept, 60) == (swept, "")
    left = "admin, learning_rate, warmup_steps, 10"
    assert shorten_all(swept, 34) == (["24x1 0.001", "24x1 0.002", "24x2 0.001", "24x2 0.002"], left)
    ragged = ["24x1 admin, num_kv_heads 1, mlp_dim 208, loops 2", "24x1 admin, num_kv_heads 2, mlp_dim 208"]
    assert shorten_all(ragged, 34) == (["num_kv_heads 1, loops 2", "num_kv_heads 2"], "24x1 admin, mlp_dim 208")
    assert shorten_all(["a" * 9] * 2, 5) == (["aa…aa"] * 2, "")


def test_json_has_null_where_a_number_is_not_finite() -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    value = {"loss": math.nan, 2: [1.5, -math.inf, {"range": (math.inf, 3)}], "name": "a", "seen": True}
    read = json.loads(to_json(value), parse_constant=refuse)
    assert read == {"loss": None, "2": [1.5, None, {"range": [None, 3]}], "name": "a", "seen": True}
