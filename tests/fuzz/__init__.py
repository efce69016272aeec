"""Fuzzers: what is damaged, mutated or killed at random ends in one sentence or in the same result, never otherwise.

Each is seeded, so a case is its number. A short part runs with every test; many more on demand:

    EVERLEARN_FUZZ=3000 python -m pytest tests/fuzz

does cases 0 to 2999 of each fuzzer, and `EVERLEARN_FUZZ=1234:1235` case 1234 alone. All failures of a fuzzer are
listed together. A new fuzzer is a file here with a test that calls :func:`fuzz.harness.fuzz`.
"""
