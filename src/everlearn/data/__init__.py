"""Corpora → documents → token blocks → block sources with exact state → batches.

Nothing in this list imports torch. What makes tensors is imported from `loader.py` and `reservoir.py`.
"""

from everlearn.data.blocks import Block, BlockSource, PackedBlocks, tokens_in
from everlearn.data.corpus import Corpus, Document, Domain
from everlearn.data.documents import check_corpus, read_documents
from everlearn.data.mixing import Mixture
from everlearn.data.prepare import Prepared, prepare
from everlearn.data.streaming import StreamedBlocks

__all__ = [
    "Block",
    "BlockSource",
    "Corpus",
    "Document",
    "Domain",
    "Mixture",
    "PackedBlocks",
    "Prepared",
    "StreamedBlocks",
    "check_corpus",
    "prepare",
    "read_documents",
    "tokens_in",
]
