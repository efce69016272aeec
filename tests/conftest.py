"""Tiny models and tokenizers, built here: no hub, no network, no GPU."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest

import tiny


@pytest.fixture(scope="session")
def tokenizer():
    """Byte-level BPE of 384 tokens with <s> </s> <pad> <mask> <unk>."""
    return tiny.tokenizer()


@pytest.fixture
def make_model():
    """`make_model("roberta")` → a random two-layer model of that architecture in float32, dropout as asked."""
    return tiny.model
