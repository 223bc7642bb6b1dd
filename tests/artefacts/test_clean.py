import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtriage.artefacts.clean import _SECRETS, MASK, QUOTE_CHARS, _may_hold, _may_hold_secret, clean_text


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
        ('password = "correct horse battery staple"', "horse battery"),
        (r"{\"password\": \"correct horse\"}", "correct horse"),
        ("postgres://user:pa/ss@w0rd@db.example/x", "w0rd"),
        ("Authorization: Token abcdef0123", "abcdef0123"),
        ('{"Authorization": "token ghx12345678"}', "ghx12345678"),
        ("curl -u user:hunter22 https://example.org", "hunter22"),
        ("Server=db;pwd=hunter22;", "hunter22"),
        ("slack xapp-1-A012-345-abcdef", "A012-345-abcdef"),
        ("key SG.abcdefghijklmnop.qrstuvwxyz0123456789", "qrstuvwxyz0123456789"),
        ("docker login dckr_pat_abcdefghijkl", "abcdefghijkl"),
        ("post to https://hooks.slack.com/services/T000/B000/XXXXabcd", "XXXXabcd"),
        ("GET https://x.example/y?sv=1&sig=abc%2Bdefghij%3D&x=1", "defghij"),
        ("GET https://x.example/y?X-Amz-Signature=0123456789abcdef", "0123456789abcdef"),
        ("Set-Cookie: session=abcdef; Path=/", "abcdef"),
        ('-H "Cookie: a=b; session=0123abc"', "0123abc"),
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
        "PWD=/workspace/run OLDPWD=/workspace",
        "docker run -u 1000:1000 image",
        "basic training finished, starting advanced training",
        "init_method tcp://10.0.0.1:29500 world size 8",
        "Signal 11 (SIGSEGV) received, sig=11",
        "python -u train.py --lr 1e-3",
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


PIECES = (
    "password",
    '"',
    "\\",
    ": ",
    "=",
    "token",
    "Cookie",
    "Authorization",
    "Token ",
    "-u ",
    "a@b.example",
    "https://",
)


@given(st.lists(st.sampled_from([*PIECES, "x:y@", "[masked]", " ", "sig=", "abcdefgh12", "Basic "]), max_size=30))
def test_cleaning_pieces_of_secrets_changes_nothing_twice(pieces: list[str]) -> None:
    for limit in (30, 240):
        cleaned = clean_text("".join(pieces), limit)
        assert clean_text(cleaned, limit) == cleaned


def test_a_megabyte_of_almost_secrets_takes_no_time() -> None:
    clean_text("password=" * 100_000, limit=None)
    clean_text("a@" * 300_000, limit=None)
    clean_text("https://" * 100_000, limit=None)
    for piece in (
        "https://a:b@",
        "curl -u ",
        'password="',
        "Cookie: a=",
        "Authorization: ",
        "-u a:",
        "SG.aaaaaaaaaaaa.",
        "&sig=",
    ):
        clean_text(piece * 50_000, limit=None)


_HEX = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"login(token={_HEX})", _HEX),
        (f"GET https://h/x?token={_HEX}&a=1", _HEX),
        (f"[token={_HEX}]", _HEX),
        ("MYSQL_PWD=hunter2xx", "hunter2xx"),
        ("DB_PASS=hunter2xx", "hunter2xx"),
        (f'wandb.login(key="{_HEX}")', _HEX),
        (f"wandb login {_HEX}", _HEX),
        (f"AZURE_STORAGE_KEY={_HEX}==", _HEX),
        (f"auth={_HEX}", _HEX),
        (f"api key: {_HEX}", _HEX),
        ("password        = hunter2xx", "hunter2xx"),
        (f"aws_secret_access_key {_HEX}", _HEX),
        ("the password is hunter2!", "hunter2!"),
        ("sshpass -p hunter2x host", "hunter2x"),
        ("MIIEpAIBAAKCAQEAtH3b5Yx2n0C5x1V9K3l5p2Qn4m8bJ6d7f9g0h1j2k3l4m5n6", "AKCAQEAtH3b5Yx2n0C5"),
    ],
)
def test_secrets_in_more_spellings_are_masked(text: str, secret: str) -> None:
    cleaned = clean_text(text)
    assert secret not in cleaned
    assert MASK in cleaned
    assert clean_text(cleaned) == cleaned


@pytest.mark.parametrize(
    "text", ["pass=3 of 10", "first pass: 12", "sorted by key=name", "step 3 loss 2.0 tokens/s 123", _HEX, "auth=none"]
)
def test_harmless_words_near_secrets_stay(text: str) -> None:
    assert clean_text(text) == text


@pytest.mark.parametrize(
    "option",
    [
        "--hf_token ", "--wandb_api_key ", "--openai_api_key=", "--db_password ", "--secret_key ", "--private_key ",
        "--auth_token ", "--wandb_key=", "--hf_key ", "--model.hub-token ",
    ],
)  # fmt: skip
def test_the_value_of_an_option_that_names_a_secret_is_masked(option: str) -> None:
    assert clean_text(f"train.py {option}abcdwxyz --lr 1") == f"train.py {option}{MASK} --lr 1"


@pytest.mark.parametrize(
    "text",
    ["--max_token 8192", "--eos_token <|end|>", "--add_bos_token true", "--sort_key length", "--use_token --lr 1e-3"],
)
def test_options_about_words_and_columns_stay(text: str) -> None:
    assert clean_text(text) == text


@pytest.mark.parametrize("text", ["tokens/s=1234", "num_tokens 5", "task-7 token 12", "key 5", "connection refused"])
def test_lines_of_training_cost_one_scan(text: str) -> None:
    assert not _may_hold_secret(text)


KEYS = ("token", "key", "api_key", "hf_", "auth", "_x", "--", "bearer ", "AKIA", "Ab1", "connection", "string", "-----")


@given(st.lists(st.sampled_from([*PIECES, *KEYS, " ", "=", "a1b2c3d4e5f6g7", "-", "_"]), max_size=12))
def test_the_one_scan_misses_nothing_that_a_pattern_masks(pieces: list[str]) -> None:
    text = "".join(pieces)
    if not _may_hold_secret(text):
        assert not any(pattern.search(text) for pattern, *_ in _SECRETS)


@given(st.lists(st.sampled_from([*PIECES, *KEYS, " ", "=", "a1b2c3d4e5f6g7", "-", "_"]), max_size=12))
def test_every_text_that_a_pattern_masks_holds_one_of_its_words(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert all(_may_hold(text, needed) for pattern, _, needed in _SECRETS if pattern.search(text))
