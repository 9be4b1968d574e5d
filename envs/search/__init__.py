"""Multi-hop questions over a corpus with BM25 search."""
