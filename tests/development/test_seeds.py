from __future__ import annotations

import pytest

from tests.support.seeds import drawn_seed


def test_what_fails_says_with_which_seed_it_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TESTS_SEED", raising=False)
    with pytest.raises(AssertionError) as caught, drawn_seed() as seed:
        raise AssertionError
    (note,) = caught.value.__notes__
    name, _, value = next(word for word in note.split() if "=" in word).partition("=")
    monkeypatch.setenv(name, value)
    with drawn_seed() as again:
        assert again == seed
