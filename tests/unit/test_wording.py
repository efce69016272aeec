import pytest

from everlearn.wording import count, plural


@pytest.mark.parametrize(
    ("noun", "several"),
    [("domain", "domains"), ("class", "classes"), ("batch", "batches"), ("memory", "memories"), ("day", "days")],
)
def test_the_noun_follows_its_number(noun, several):
    assert plural(noun) == several
    assert count(1, noun) == f"1 {noun}"
    assert [count(number, noun) for number in (0, 2)] == [f"0 {several}", f"2 {several}"]


def test_thousands_are_separated_and_irregular_plurals_are_given():
    assert count(12_800, "token") == "12,800 tokens"
    assert count(2, "analysis", "analyses") == "2 analyses"
    assert count(1, "analysis", "analyses") == "1 analysis"
