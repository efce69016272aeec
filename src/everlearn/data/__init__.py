"""Corpora → documents → token blocks → block sources with exact state → batches."""

from everlearn.data.blocks import Block, BlockSource, PackedBlocks, tokens_in
from everlearn.data.corpus import Corpus, Document, Domain
from everlearn.data.documents import check_corpus, read_documents
from everlearn.data.endtask import EndTask, LabelledSet, check_end_task, read_end_task
from everlearn.data.loader import BlockLoader, sample_batches
from everlearn.data.mixing import Mixture
from everlearn.data.packing import pack
from everlearn.data.prepare import Prepared, prepare
from everlearn.data.reservoir import Reservoir
from everlearn.data.streaming import StreamedBlocks

__all__ = [
    "Block",
    "BlockLoader",
    "BlockSource",
    "Corpus",
    "Document",
    "Domain",
    "EndTask",
    "LabelledSet",
    "Mixture",
    "PackedBlocks",
    "Prepared",
    "Reservoir",
    "StreamedBlocks",
    "check_corpus",
    "check_end_task",
    "pack",
    "prepare",
    "read_documents",
    "read_end_task",
    "sample_batches",
    "tokens_in",
]
