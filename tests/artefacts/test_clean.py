import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtriage.artefacts.clean import MASK, QUOTE_CHARS, clean_text


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        ("export HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123", "hf_abcdefghijklmnopqrstuvwxyz0123"),
        ("git clone https://user:s3cr3tpass@example.org/repo.git", "s3cr3tpass"),
        ("git clone https://ghp_0123456789abcdefghij@github.com/x/y", "ghp_0123456789abcdefghij"),
        ("Authorization: Bearer abc.def-ghi_jkl012", "abc.def-ghi_jkl012"),
        ("mail somebody.else+tag@example.co.uk about it", "somebody.else+tag@example.co.uk"),
        ("WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567", "0123456789abcdef0123456789abcdef01234567"),
        ('{"password": "hunter22"}', "hunter22"),
        ("aws AKIAIOSFODNN7EXAMPLE used", "AKIAIOSFODNN7EXAMPLE"),
        ("run.py --api-key sk-proj-abcdefgh12345678 --lr 1", "sk-proj-abcdefgh12345678"),
        ("OPENAI key sk-abcdefghijklmnop1234", "sk-abcdefghijklmnop1234"),
        ("AZURE_STORAGE_ACCOUNT_KEY=Zm9vYmFyYmF6cXV4Zm9vYmFy==", "Zm9vYmFyYmF6cXV4Zm9vYmFy"),
        ("token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abcDEF123", "eyJzdWIiOiIxIn0"),
    ],
)
def test_a_secret_is_masked_and_the_rest_of_the_line_stays(line: str, secret: str) -> None:
    cleaned = clean_text(line)
    assert secret not in cleaned
    assert MASK in cleaned


@pytest.mark.parametrize(
    "line",
    [
        "num_tokens=4096 max_tokens: 8192 tokens/s 12000.5",
        "tokenizer: loaded vocabulary of 32000 tokens",
        "[rank0] step 3 loss 7.1288 grad_norm 0.39",
        "step 4 tokens 3968",
        "key '0', but store->get('0') got error: Socket Timeout",
        "KeyError: 'messages'",
    ],
)
def test_what_only_sounds_like_a_secret_is_left_alone(line: str) -> None:
    assert clean_text(line) == line


def test_escape_control_and_bidirectional_characters_are_removed() -> None:
    dirty = "\x1b[31mred\x1b[0m \x1b]0;title\x07ok\x00\x08 \u202eevil\u2066 zero\u200bwidth\ttab\x9b"
    assert clean_text(dirty) == "red ok evil zerowidth tab"


@given(st.text(max_size=2000))
def test_cleaning_is_bounded_printable_and_changes_nothing_twice(text: str) -> None:
    cleaned = clean_text(text)
    assert len(cleaned) <= QUOTE_CHARS
    assert "\x1b" not in cleaned
    assert "\n" not in cleaned
    assert clean_text(cleaned) == cleaned


@given(st.text(alphabet="ab@.:/=-_ \"'key token", max_size=400))
def test_a_cut_line_is_part_of_the_whole_cleaned_line(text: str) -> None:
    assert clean_text(text, 50) in clean_text(text, None)


def test_a_megabyte_of_almost_secrets_takes_no_time() -> None:
    clean_text("password=" * 100_000, limit=None)
    clean_text("a@" * 300_000, limit=None)
    clean_text("https://" * 100_000, limit=None)
