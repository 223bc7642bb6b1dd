"""Masking a log: secrets that a line end cuts in two, and keys that are blocks of lines."""

from __future__ import annotations

import time

import pytest

from torchtriage.bundle.log_secrets import mask_lines

KEY_LINE = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
SHORT = "Zz09aBcDeFgHiJ+/1="


def masked(text: str, before: str = "") -> str:
    done, whole = mask_lines(text, 1.0, lambda: 0.0, before)
    assert whole
    return done


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("password:", "hunter2-hunter2"),
        ("[rank0]: api_key =", "[rank0]: abcdef123456"),
        ('  "secret":', '    "abcdefghijkl",'),
        ("db_password: |", "  abcdefghijkl"),
        ("HF_TOKEN=\\", "abcdefgh1234"),
        ("token: >-", "  abcdefgh1234"),
        ("train.py --password \\", "  abcdefgh1234 \\"),
        ("+ access_token='", "abcdefgh1234'"),
    ],
)
def test_a_value_on_the_line_after_its_name_is_masked(first: str, second: str) -> None:
    secret = next(word for word in second.strip("',\\ ").replace('"', "").split() if not word.startswith("["))
    done = masked(f"a\n{first}\n{second}\nb\n")
    assert secret not in done
    assert done.startswith(f"a\n{first}\n")
    assert done.endswith("\nb\n")
    assert "[masked]" in done
    assert secret not in masked(f"{second}\nb\n", before=first)


@pytest.mark.parametrize(
    "text",
    [
        "step 1:\nloss=2.5\n",
        "tokens:\n8192\n",
        "token:\n50256\n",
        "Enter password:\nTraceback (most recent call last):\n",
        "key:\nabcdefghijkl\n",
        "it ends with a quote 'here'\nnext\r\nlast",
        "progress\rmore\r\n\n\n",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert masked(text) == text


def test_a_quoted_value_that_goes_on_is_masked_up_to_its_quote() -> None:
    done = masked('password="abcdefgh\nijklmnop" and more\n')
    assert done == 'password="[masked]\n[masked]" and more\n'


@pytest.mark.parametrize("prefix", ["", "[default0]:", "2026-11-30 07:00:00 worker: "])
def test_a_private_key_is_masked_to_its_last_line(prefix: str) -> None:
    lines = ["-----BEGIN RSA PRIVATE KEY-----", KEY_LINE, KEY_LINE, SHORT, "-----END RSA PRIVATE KEY-----"]
    text = "before\n" + "".join(f"{prefix}{line}\n" for line in lines) + "after\n"
    for start in range(len("before\n"), text.index(SHORT), 40):
        done = masked(text[start:])
        assert not any(part in done for part in (KEY_LINE[-20:], SHORT)), done
        assert done.endswith("after\n")
    assert masked(text).startswith("before\n")


def test_a_certificate_and_an_end_without_a_beginning_leave_the_log_alone() -> None:
    text = (
        "step 1\n-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\nloss is 3\n-----END PRIVATE KEY-----\nx\n"
    )
    assert masked(text) == text.replace("-----END PRIVATE KEY-----", "[masked]")


@pytest.mark.parametrize(
    "piece",
    ["-----BEGIN PRIVATE KEY-----\n", "-----END PRIVATE KEY-----\n", "-----END x", "password:\n", "password=\"a\n",
     "[" * 50 + "\n", "a" * 70 + "\n", "token " * 8 + ":\n"],
)  # fmt: skip
def test_a_hostile_log_takes_time_in_proportion_to_its_length(piece: str) -> None:
    took_s: list[float] = []
    for size in (10_000, 80_000):
        text = piece * (size // len(piece))
        began = time.process_time()
        mask_lines(text, float("inf"), lambda: 0.0)
        took_s.append(time.process_time() - began)
    assert took_s[1] < 40 * max(took_s[0], 0.02)


def test_where_time_runs_out_the_first_line_kept_is_no_value_of_the_one_before() -> None:
    ticks = iter([0.0] * 1 + [9.0] * 9)
    done, whole = mask_lines("x\npassword:\nabcdefghijkl\nend", 5.0, lambda: next(ticks))
    assert not whole
    assert "abcdefghijkl" not in done
