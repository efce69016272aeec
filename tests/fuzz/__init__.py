"""Fuzzers: what is damaged, mutated or killed at random ends in one sentence or in the same result, never otherwise.

Each is seeded, so a case is its number. A short part runs with every test; many more on demand:

    make fuzz COUNT=3000

does cases 0 to 2999 of the quickest and fewer of those that take longer; with pytest, `EVERLEARN_FUZZ=1234:1235` does
case 1234 alone. All failures of a fuzzer are listed together. A new fuzzer is a file here with a test that calls
:func:`fuzz.harness.fuzz`.
"""
