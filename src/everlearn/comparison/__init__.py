"""Several runs side by side: their rows, pairs, intervals and judgements; writes nothing."""
