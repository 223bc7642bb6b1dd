"""Cleaning of what is quoted from a job: it is data, of bounded length, without control characters or secrets.

``clean_text`` is the one function that does it; :mod:`torchtriage.artefacts.evidence` checks quotes with the same one.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from torchtriage.lazy_re import lazy_re

if TYPE_CHECKING:
    import re

QUOTE_CHARS = 240

# CSI, OSC and two-character escape sequences (ECMA-48); what a terminal would act on.
_ESCAPES = lazy_re(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,512}(?:\x07|\x1b\\)?|[@-Z\\-_])")
# Everything that a page or a terminal hides or turns around, beyond what category C already covers.
_HIDDEN = lazy_re(
    "[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)

MASK = "[masked]"
_NOT_MASKED = r"(?!\[masked\])"
_WORD = r"[A-Za-z0-9_\-]"
# Names that say what they hold.
_SECRETIVE = (
    r"(?:passw(?:or)?d|passphrase|secret|api[_\- ]?key|access[_\- ]?key|private[_\- ]?key|"
    r"auth[_\-]?token|access[_\-]?token|refresh[_\-]?token|session[_\-]?token|credentials?|account[_\-]?key|"
    r"connection[_\-]?string|(?:wandb|openai|anthropic)[_\-]key)(?:_[A-Za-z0-9_\-]{0,32})?"
)
# Between a name and its value; the quotes may be escaped, as in JSON inside JSON.
_IS = r"(?:\\{0,3}['\"])?\s{0,16}[:=]\s{0,16}"
# A value in quotes may hold blanks. The opening quote belongs to what is kept.
_QUOTED_VALUES = (
    (r"\\{1,3}\"", r"[^\"\\]{1,4096}"),
    (r"\\{1,3}'", r"[^'\\]{1,4096}"),
    (r"\"", r"(?:[^\"\\]|\\.){1,4096}"),
    (r"'", r"(?:[^'\\]|\\.){1,4096}"),
)
_SECRETIVE_WORDS = ("passw", "passphrase", "secret", "key", "token", "credential", "connection")
_TOKEN_STARTS = (
    "hf_", "gh", "glpat-", "sk-", "sk_live_", "rk_live_", "xox", "xapp-", "npm_", "pypi-", "wandb_v1_", "nvapi-",
    "dop_v1_", "dckr_",
)  # fmt: skip
# Every pattern is anchored on a literal, so that a hostile line costs linear time. Behind what stands in place of the
# secret are the words of which a text in ASCII holds one, in small letters, where the pattern matches.
_SECRETS: tuple[tuple[re.Pattern[str], str, tuple[str, ...]], ...] = (
    # user:password@ and token@ in URLs; a password may hold "/" and "@", a port is none
    (
        lazy_re(r"(?i)\b([a-z][a-z0-9+.\-]{1,20}://)[^\s/@:'\"<>]{0,128}:(?!\d{1,5}/)[^\s'\"<>]{1,256}@"),
        rf"\1{MASK}@",
        ("@",),
    ),
    (lazy_re(r"(?i)\b([a-z][a-z0-9+.\-]{1,20}://)[^\s/@'\"<>]{1,256}@"), rf"\1{MASK}@", ("@",)),
    # web hooks and signed URLs are keys by themselves
    (
        lazy_re(
            rf"(?i)(hooks\.slack\.com/(?:services|workflows|triggers)/|/api/webhooks/){_NOT_MASKED}[\w/\-]{{4,512}}"
        ),
        rf"\1{MASK}",
        ("hooks.slack.com/", "/api/webhooks/"),
    ),
    (
        lazy_re(
            r"(?i)((?:\bsig|\bsignature|\bx-(?:amz|goog)-(?:signature|credential|security-token))=)"
            rf"{_NOT_MASKED}[^\s&'\"<>]{{8,4096}}"
        ),
        rf"\1{MASK}",
        ("sig=", "signature=", "credential=", "-token="),
    ),
    # e-mail addresses
    (
        lazy_re(r"(?<![A-Za-z0-9._%+\-])[A-Za-z0-9._%+\-]{1,64}@[A-Za-z0-9\-]{1,63}(?:\.[A-Za-z0-9\-]{1,63}){1,8}"),
        MASK,
        ("@",),
    ),
    # well-known token forms: Hugging Face, GitHub, GitLab, model vendors, Slack, Docker, AWS, Google, npm, PyPI, W&B
    (
        lazy_re(
            r"\b(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|sk_live_|rk_live_|xox[abposr]-|xapp-|npm_|pypi-|wandb_v1_|nvapi-"
            rf"|dop_v1_|dckr_(?:pat|oat)_){_WORD}{{8,512}}"
        ),
        MASK,
        _TOKEN_STARTS,
    ),
    (lazy_re(rf"\bSG\.{_WORD}{{10,64}}\.{_WORD}{{10,128}}"), MASK, ("sg.",)),
    (lazy_re(r"\b(?:AKIA|ASIA|AGPA|AROA|AIDA)[A-Z0-9]{12,32}\b"), MASK, ("akia", "asia", "agpa", "aroa", "aida")),
    (lazy_re(rf"\bAIza{_WORD}{{30,64}}"), MASK, ("aiza",)),
    (lazy_re(rf"\beyJ{_WORD}{{8,2048}}\.{_WORD}{{4,4096}}(?:\.{_WORD}{{0,2048}})?"), MASK, ("eyj",)),
    (lazy_re(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.{0,8192}"), MASK, ("-----begin ",)),
    # headers
    (
        lazy_re(
            rf"(?i)\b((?:proxy-)?authorization{_IS}(?:\\{{0,3}}['\"])?){_NOT_MASKED}"
            r"(?:(?:bearer|basic|token|digest|apikey|negotiate|bot|aws4-hmac-sha256)\s{1,4})?[^\s'\",\\]{4,4096}"
        ),
        rf"\1{MASK}",
        ("authorization",),
    ),
    (
        lazy_re(rf"(?i)\b((?:set-)?cookie{_IS}(?:\\{{0,3}}['\"])?){_NOT_MASKED}[^\s=;'\"]{{1,128}}=[^'\"]{{1,4096}}"),
        rf"\1{MASK}",
        ("cookie",),
    ),
    (
        lazy_re(
            rf"(?i)\b(bearer|basic)\s{{1,8}}{_NOT_MASKED}(?=[a-z._~+/\-]{{0,512}}[0-9=])[a-z0-9._~+/\-]{{8,2048}}=*"
        ),
        rf"\1 {MASK}",
        ("bearer", "basic"),
    ),
    # curl -u user:password; "-u 1000:1000" is a user and a group
    (
        lazy_re(
            rf"(\s(?:-u|--user|--proxy-user)(?:\s{{1,4}}|=)['\"]?){_NOT_MASKED}(?!\d{{1,10}}:\d{{1,10}}(?:\s|$))"
            r"[^\s:'\"/]{1,128}:[^\s'\"]{1,512}"
        ),
        rf"\1{MASK}",
        ("-u",),
    ),
    # NAME=value, "name": "value", for names that say what they hold
    *(
        (lazy_re(rf"(?i)({_SECRETIVE}{_IS}{quote}){_NOT_MASKED}{value}"), rf"\1{MASK}", _SECRETIVE_WORDS)
        for quote, value in _QUOTED_VALUES
    ),
    (lazy_re(rf"(?i)({_SECRETIVE}{_IS}){_NOT_MASKED}([^\s'\",;&}}\])]{{4,4096}})"), rf"\1{MASK}", _SECRETIVE_WORDS),
    # PWD is also the name of the working folder
    (lazy_re(rf"(?i)((?<![a-z0-9])pwd=){_NOT_MASKED}(?![/~.$])[^\s'\",;&}}\])]{{3,4096}}"), rf"\1{MASK}", ("pwd=",)),
    # "token" also counts words in this field: only a whole last word, and never a number, is a secret
    (
        lazy_re(
            rf"(?i)((?:^|[_\-.\s'\"(\[{{,;?&/])token{_IS}(?:\\{{0,3}}['\"])?){_NOT_MASKED}(?![\d.,]+(?:[\s'\"}}\])]|$))"
            r"([^\s'\",;&}\])]{8,4096})"
        ),
        rf"\1{MASK}",
        ("token",),
    ),
    # options; of keys those of a service, as "--sort_key" names a column
    (
        lazy_re(
            r"(?i)(--(?=[a-z0-9])[a-z0-9_.\-]{0,40}(?:passw(?:or)?d|passphrase|secret|"
            r"(?:api|access|secret|private|account|auth|wandb|hf|openai|anthropic|aws)[_\-]?key)(?:\s+|=)['\"]?)"
            rf"{_NOT_MASKED}([^\s'\"]{{4,4096}})"
        ),
        rf"\1{MASK}",
        ("passw", "passphrase", "secret", "key"),
    ),
    # "--max_token 8192", "--eos_token <eos>" and "--add_bos_token true" speak of words
    (
        lazy_re(
            r"(?i)(--(?=[a-z0-9])[a-z0-9_.\-]{0,40}token(?:\s+|=)['\"]?)"
            rf"{_NOT_MASKED}(?!(?:[\d.,]{{1,32}}|true|false|none|null)(?:[\s'\"]|$)|[<\[]|--[a-z])([^\s'\"]{{4,4096}})"
        ),
        rf"\1{MASK}",
        ("token",),
    ),
    # DB_PASS=...; "pass" alone also counts passes
    (
        lazy_re(rf"(?i)((?:_|['\"])pass(?:['\"])?[:=]\s{{0,4}}['\"]?){_NOT_MASKED}(?!\d+\b)[^\s'\",;&]{{4,512}}"),
        rf"\1{MASK}",
        ("pass",),
    ),
    # the same names with a blank before the value
    (
        lazy_re(
            rf"(?i)(\bpassw(?:or)?d(?:\s{{1,4}}is)?\s{{1,4}}['\"]?|secret_access_key\s{{1,4}}|\bsshpass\s{{1,4}}-p\s{{0,4}}"
            rf"|\bwandb login\s{{1,4}}){_NOT_MASKED}(?=[^\s'\"]{{0,64}}[0-9!@#$%^&*+/])[^\s'\"]{{6,512}}"
        ),
        rf"\1{MASK}",
        ("passw", "secret_access_key", "sshpass", "wandb login"),
    ),
    # other keys: by their form, as "key" is also what mappings and sorts have
    (
        lazy_re(
            rf"((?:[A-Z0-9]_KEY|(?:^|[?&(,\s])key|(?:^|[?&(,\s])auth)\s{{0,4}}=\s{{0,4}}['\"]?){_NOT_MASKED}"
            r"(?=[^\s'\"&]{0,64}\d)[^\s'\",;&)\]}]{12,512}"
        ),
        rf"\1{MASK}",
        ("key", "auth"),
    ),
    # the lines between BEGIN and END of a key
    (lazy_re(r"^\s{0,8}(?=[^\n]{0,80}[G-Zg-z+/])(?=[^\n]{0,80}\d)[A-Za-z0-9+/]{60,76}={0,2}\s{0,8}$"), MASK, ()),
)
_MAX_ROUNDS = 3

# Lines without any of these cannot hold a secret that we know: the common case is one scan. "token" and "key" are in
# every other line of a training job, so they count only with what makes them the name of a value.
_NAME_OF_VALUE = (
    r"(?:key|token)(?:_[a-z0-9_\-]{0,32})?(?:\\{0,3}['\"])?\s{0,16}[:=]|--(?=[a-z0-9])[a-z0-9_.\-]{0,40}(?:key|token)\s"
)
_KEY_LINE = r"^\s{0,8}[A-Za-z0-9+/]{60,76}={0,2}\s{0,8}$"
_NAMES_VALUE_OR_IS_KEY = lazy_re(rf"{_NAME_OF_VALUE}|{_KEY_LINE}")
_MAY_HOLD_SECRET = lazy_re(
    rf"(?i)@|pass|secret|{_NAME_OF_VALUE}|credential|(?:bearer|basic)\s|"
    r"\bhf_|\bgh[pousr]_|\bgithub_pat_|\bglpat|\bsk-|\bsk_live|\brk_live|\bxox|\bnpm_|\bpypi-|"
    r"\bwandb_|\bnvapi|\bdop_v1|AKIA|ASIA|AGPA|AROA|AIDA|AIza|eyJ|BEGIN |connection[_\-]?string|"
    r"xapp-|SG\.|dckr_|hooks|sig=|signature|x-amz|x-goog|cookie|auth|pwd=|\s-u|--user|--proxy-user|wandb login|"
    rf"{_KEY_LINE}"
)
# Each other alternative of the pattern above holds one of these; to look for words is many times faster.
_WORDS = (
    "@", "pass", "secret", "credential", "bearer", "basic", "hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_",
    "github_pat_", "glpat", "sk-", "sk_live", "rk_live", "xox", "npm_", "pypi-", "wandb_", "nvapi", "dop_v1", "akia",
    "asia", "agpa", "aroa", "aida", "aiza", "eyj", "begin ", "connection", "xapp-", "sg.", "dckr_", "hooks",
    "sig=", "signature", "x-amz", "x-goog", "cookie", "auth", "pwd=", "-u", "--proxy-user", "wandb login",
)  # fmt: skip


def _may_hold_secret(text: str) -> bool:
    if text.isascii():  # other letters have more than one small form
        lowered = text.lower()
        if not any(word in lowered for word in _WORDS):
            return _NAMES_VALUE_OR_IS_KEY.search(lowered) is not None
    return _MAY_HOLD_SECRET.search(text) is not None


def mask_secrets(text: str) -> str:
    """Replace tokens, keys, passwords and e-mail addresses by ``[masked]``."""
    if not _may_hold_secret(text):
        return text
    # What one pattern leaves may show another one its secret.
    for _ in range(_MAX_ROUNDS):
        masked = text
        for pattern, replacement, needed in _SECRETS:
            if _may_hold(masked, needed):
                masked = pattern.sub(replacement, masked)
        if masked == text:
            break
        text = masked
    return text


def _may_hold(text: str, needed: tuple[str, ...]) -> bool:
    if not needed or not text.isascii():
        return True
    lowered = text.lower()
    return any(word in lowered for word in needed)


def strip_controls(text: str) -> str:
    """Remove escape sequences, control, bidirectional and invisible characters; tabs and newlines become a blank."""
    if text.isascii() and text.isprintable():
        return text
    text = _ESCAPES.sub("", text).replace("\t", " ").replace("\n", " ")
    text = _HIDDEN.sub("", text)
    if not text.isascii():
        text = "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn"))
    return text


def clean_text(text: str, limit: int | None = QUOTE_CHARS) -> str:
    """Make one line of a job's output fit to be quoted.

    The result is printable, holds no known secret, and is cut (not elided) at ``limit`` characters, so that it is part
    of the cleaned line. ``limit=None`` cleans the whole line. Cleaning what is clean changes nothing.
    """
    # Masking looks at more than it keeps, so that a secret cannot be cut into something that no pattern knows.
    window = text if limit is None else text[: limit * 4 + 1024]
    cleaned = mask_secrets(strip_controls(window)).strip()
    if limit is None:
        return cleaned
    for _ in range(_MAX_ROUNDS):
        cut = cleaned[:limit].rstrip()
        cleaned = mask_secrets(cut).strip()
        if cleaned == cut:
            break
    return cleaned[:limit].rstrip()
