"""Files that match a pattern, and the members at a node that look for them, each by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nebuli.connectors.errors import InputError
from nebuli.steps.logs.remap import Remap
from nebuli.steps.member.inputs.matching_files import NewFiles, look_anew_before_first_step, own_feeds
from nebuli.steps.member.member_store import LOG
from nebuli.store import Store
from nebuli.store.errors import Damaged
from placement.plan import BoundSource
from placement.stepped_plan import Feed, Share
from topology import Column, CsvSource, DataType, GeneratorSource, PhysicalSource

NAMES = st.sets(st.from_regex(r"[a-zé\[]{1,6}", fullmatch=True), min_size=1, max_size=12)


def feed(physical: PhysicalSource, name: str, share: Share | None = None) -> Feed:
    source = BoundSource(
        id="in", logical="numbers", schema=(Column(name="n", type=DataType.INT64),), physical=physical
    )
    return Feed(input="in", name=name, source=source, share=share)


def csv(path: str, number: int = 0, of: int = 1) -> Feed:
    return feed(
        CsvSource(type="CSV", logical="numbers", path=path), f"in/{path}", Share(number=number, of=of)
    )


def paths(feeds: list[Feed]) -> list[str]:
    return [str(each.source.physical.path) for each in feeds]  # type: ignore[union-attr]


@given(early=NAMES, late=NAMES, members=st.integers(1, 5))
def test_each_file_is_one_members_though_they_look_one_after_the_other(
    tmp_path_factory: pytest.TempPathFactory, early: set[str], late: set[str], members: int
) -> None:
    """What is there all the time is read once; what comes between their looks is read once or not at all."""
    here = tmp_path_factory.mktemp("data")
    for name in early:
        (here / f"{name}.csv").touch()
    found = []
    for number in range(members):
        found += own_feeds([csv("*.csv", number, members)], here / f"member-{number}", here)
        for name in late:
            (here / f"{name}.csv").touch()
    read = paths(found)
    assert len(set(read)) == len(read)
    assert {f"{name}.csv" for name in early} <= set(read) <= {f"{name}.csv" for name in early | late}
    assert len({each.name for each in found}) == len(found)
    assert not any(each.share for each in found)


def test_what_was_found_first_stays(tmp_path: Path) -> None:
    """A process that takes the place of one that was killed reads what that had, under the same names."""
    (tmp_path / "a.csv").touch()
    plain = feed(GeneratorSource(type="Generator", logical="numbers", count=3), "in/generator")
    first = own_feeds([plain, csv("*.csv")], tmp_path / "state", tmp_path)
    assert first[0] == plain
    assert paths(first[1:]) == ["a.csv"]
    (tmp_path / "b.csv").touch()
    (tmp_path / "a.csv").unlink()
    assert own_feeds([plain, csv("*.csv")], tmp_path / "state", tmp_path) == first


async def test_before_its_first_step_a_member_looks_anew(tmp_path: Path) -> None:
    """What was wrong may have been put right, and nothing of it counts; behind that step, the list stays."""
    state = tmp_path / "state"

    async def found() -> list[str]:
        await look_anew_before_first_step(state)
        return paths(own_feeds([csv("*.csv")], state, tmp_path))

    (tmp_path / "a.csv").touch()
    assert await found() == ["a.csv"]
    (tmp_path / "a.csv").rename(tmp_path / "b.csv")
    assert await found() == ["b.csv"]
    async with Store.at(state) as store:
        remap = await Remap.open(store, LOG, {})
        (tmp_path / "b.csv").rename(tmp_path / "c.csv")
        assert await found() == ["c.csv"], "it was opened, and no step was fixed"
        await remap.fix(0)
    (tmp_path / "c.csv").rename(tmp_path / "d.csv")
    assert await found() == ["c.csv"]


def test_a_file_that_comes_later_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By the one member whose it would be: nobody reads it, and nobody would know."""
    (tmp_path / "a.csv").touch()
    looking = []
    for number in range(3):
        feeds, state = [csv("*.csv", number, 3)], tmp_path / f"state-{number}"
        own_feeds(feeds, state, tmp_path)
        looking.append(NewFiles(feeds, state, tmp_path))

    def warnings() -> list[str]:
        caplog.clear()
        for each in looking:
            each.look()
        return [record.getMessage() for record in caplog.records]

    assert warnings() == []
    (tmp_path / "b.csv").touch()
    (warning,) = warnings()
    assert warning.startswith(
        "*.csv: the query does not read matching files that appeared after it had begun: b.csv; "
    )
    assert warnings() == []
    for number in range(30):
        (tmp_path / f"c{number}.csv").touch()
    assert 1 <= len(warnings()) <= 3
    (tmp_path / "a.csv").unlink()
    assert warnings() == []


def test_two_patterns_may_match_the_same_file(tmp_path: Path) -> None:
    """Then it is two sources, which are read apart: names differ."""
    (tmp_path / "a.csv").touch()
    found = own_feeds([csv("*.csv"), csv("a*")], tmp_path / "state", tmp_path)
    assert paths(found) == ["a.csv", "a.csv"]
    assert len({each.name for each in found}) == 2


def test_a_file_whose_name_reads_like_a_pattern_is_itself(tmp_path: Path) -> None:
    """`a[1].csv` as a pattern would match `a1.csv`."""
    for name in ("a[1].csv", "a1.csv"):
        (tmp_path / name).touch()
    found = [
        own_feeds([csv("a[1].csv", number, 3)], tmp_path / f"state-{number}", tmp_path) for number in range(3)
    ]
    assert sorted(map(len, found)) == [0, 0, 1]
    assert [path for each in found for path in paths(each)] == ["a[1].csv"]


def test_a_pattern_without_a_file_is_bad_input_for_every_member(tmp_path: Path) -> None:
    for number in range(2):
        with pytest.raises(InputError, match=r"\*\.csv: no file in .* matches it"):
            own_feeds([csv("*.csv", number, 2)], tmp_path / f"state-{number}", tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"in/*.csv": '])
def test_a_damaged_list_is_no_list(tmp_path: Path, text: str) -> None:
    """It is said which file is damaged, and nothing is read."""
    (tmp_path / "a.csv").touch()
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "files.json").write_text(text, "utf-8")
    with pytest.raises(Damaged, match=r"state/files\.json .*restore"):
        own_feeds([csv("*.csv")], tmp_path / "state", tmp_path)
