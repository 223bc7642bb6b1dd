import importlib
import pkgutil
import re
from collections.abc import Iterator

import pytest

import torchtriage
from torchtriage.lazy_re import _LazyPattern, lazy_re


def patterns_in(value: object) -> Iterator[re.Pattern[str]]:
    if isinstance(value, _LazyPattern):
        yield value
    elif isinstance(value, dict):
        yield from patterns_in(tuple(value.values()))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from patterns_in(item)


def test_every_expression_of_the_package_compiles() -> None:
    names = [m.name for m in pkgutil.walk_packages(torchtriage.__path__, "torchtriage.") if "__main__" not in m.name]
    modules = map(importlib.import_module, names)
    found = [pattern for module in modules for pattern in patterns_in(tuple(vars(module).values()))]
    assert len(found) > 200
    assert all(pattern.groups >= 0 for pattern in found)


def test_it_answers_as_a_compiled_expression_does() -> None:
    lazy, compiled = lazy_re("(?P<n>a+)b", re.IGNORECASE), re.compile("(?P<n>a+)b", re.IGNORECASE)
    assert (lazy.pattern, lazy.flags, lazy.groupindex) == (compiled.pattern, compiled.flags, compiled.groupindex)
    assert lazy.sub("x", "1AAB2") == "1x2"
    assert [m["n"] for m in lazy.finditer("ab aaB")] == ["a", "aa"]


def test_it_is_compiled_at_its_first_use() -> None:
    wrong = lazy_re("(")
    with pytest.raises(re.error):
        wrong.search("x")
