"""What YAML is taken from people, and what is refused in one line, before it takes memory or time."""

from pathlib import Path

import pytest

from cluster import yaml_file
from cluster.cluster_file import read_cluster
from cluster.inventory import ClusterError
from cluster.yaml_file import YamlError, parse_yaml, read_yaml


def test_numbers_dates_and_aliases_are_read_as_people_mean_them() -> None:
    found = parse_yaml("a: 1e-4\nb: &b [1, 2]\nc: *b\n")
    assert found == {"a": 1e-4, "b": [1, 2], "c": [1, 2]}
    assert parse_yaml("") is None


def test_aliases_that_grow_without_end_are_refused_before_they_are_built() -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    for level in range(1, 12):
        text += f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n"
    with pytest.raises(YamlError, match="its aliases grow to more than 100,000 values"):
        parse_yaml(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: &a [*a]", "its aliases grow"),
        ("a: 1\na: 2", "the key 'a' is there twice"),
        ("[" * 51, "it has more than 50 brackets in each other"),
        # A minute, if all of it were read.
        (f"- {'[' * 300}{']' * 300}\n" * 1600, "more than 50 brackets"),
        ("- " * 200_000, "recursion"),
        ("steps: " + "9" * 5_000, "digits"),
        ("a: !!python/object/apply:os.system [true]", "could not determine a constructor"),
        ("day: 2026-05-99", "day"),
    ],
)
def test_what_is_not_taken_is_one_line(text: str, problem: str) -> None:
    with pytest.raises(YamlError, match=problem) as raised:
        parse_yaml(text)
    assert "\n" not in str(raised.value)


def test_no_more_values_are_read_than_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_file, "MOST_VALUES", 5)
    assert parse_yaml("[a, b, c, d]") == ["a", "b", "c", "d"]
    with pytest.raises(YamlError, match=r"^it has more than 5 values$"):
        parse_yaml("[a, b, c, d, e]")


def test_a_mistake_has_its_line() -> None:
    with pytest.raises(YamlError) as raised:
        parse_yaml("a: 1\nb: [\n")
    assert raised.value.line == 3


def test_no_more_is_read_of_a_file_than_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(YamlError, match="more than the 1,000,000 bytes"):
        read_yaml(path, "a spec")


def test_a_cluster_file_is_held_to_the_same(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("available_node_types: &all\n  a: *all\n")
    with pytest.raises(ClusterError, match=r"cluster\.yaml: is not YAML: its aliases grow"):
        read_cluster(path)
