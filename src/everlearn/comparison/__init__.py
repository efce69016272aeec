"""Compare several runs: their rows, pairs, intervals and judgements. Nothing is written."""
