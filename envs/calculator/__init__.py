"""Answer with a calculator at hand."""
